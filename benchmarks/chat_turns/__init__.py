"""Chats that come back: how much of a prompt is computed again, and how long until the first token."""
