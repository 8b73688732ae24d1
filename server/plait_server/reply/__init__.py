"""What a model's reply says: reasoning, text for the reader, and calls of tools."""
