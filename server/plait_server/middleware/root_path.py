"""The path under which a proxy shows the server: some proxies leave it in front of requests' paths, some do not."""

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """From here on every path begins with it, as ASGI wants it; routers then leave it out."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            inside = path == self.root_path or path.startswith(self.root_path + "/")
            scope = {**scope, "root_path": self.root_path, "path": path if inside else self.root_path + path}
        await self.app(scope, receive, send)
