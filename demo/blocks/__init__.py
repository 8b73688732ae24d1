"""The forms in which context comes: each module writes one, and says what can be asked about it."""
