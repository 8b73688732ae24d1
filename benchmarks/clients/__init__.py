"""Clients that people use with OpenAI-compatible servers, run against the demo model: see docs/clients.md."""
