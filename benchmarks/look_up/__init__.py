"""How often the demo model finds what it was told, over HTTP; and whether prefix reuse changes a single letter."""
