"""``plait bench serve``: load for any OpenAI-compatible server, and what it made of it."""
