"""The ``plait`` command."""

from plait_server.cli.commands import main

__all__ = ["main"]
