"""Clients from other networks than those allowed get no further than here."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

from plait_server.call import call_of
from plait_server.errors import ApiError

Network = IPv4Network | IPv6Network


class ClientNetworks:
    """Pure ASGI, in front of keys and routes: no body is read for a stranger."""

    def __init__(self, app: ASGIApp, networks: Sequence[str]) -> None:
        self.app = app
        self.networks = [ip_network(network) for network in networks]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allows(scope.get("client")):
            error = ApiError(403, "requests from this address are not allowed here", code="network_not_allowed")
            call_of(scope).reason = error.code
            await error.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _allows(self, client: tuple[str, int] | None) -> bool:
        if client is None:
            return False
        try:
            address = ip_address(client[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)
