"""Pure ASGI layers around the application."""
