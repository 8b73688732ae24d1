"""Where the model that ships with the package lies."""

from pathlib import Path

DEMO_FOLDER = Path(__file__).parent / "demo"
"""A small hybrid that looks things up in its context; its README.md is the model card."""
