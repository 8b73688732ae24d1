"""What clients get to see of a generation, as chunks of a stream and as one document."""
