"""What requests may say, with ranges; and the shape of what is answered."""
