"""What prefix reuse costs where nothing can be reused."""
