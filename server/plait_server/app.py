"""The application: routes, layers around them, and what lives as long as it does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from plait_engine.client import EngineClient
from plait_server.audit import Audit, AuditLog
from plait_server.auth.guard import Guard
from plait_server.config import ServerConfig
from plait_server.errors import install_handlers
from plait_server.front import FrontEnd
from plait_server.middleware.connection import ClientConnection
from plait_server.middleware.last_resort import LastResort
from plait_server.middleware.networks import ClientNetworks
from plait_server.middleware.request_id import RequestId
from plait_server.middleware.root_path import RootPath
from plait_server.middleware.short_way import ShortWay
from plait_server.pins import pin_configured
from plait_server.protocol.errors import RESPONSES
from plait_server.release import installed_version
from plait_server.routes import cache, chat, completions, health, metrics, models, tokenize
from plait_server.text.model_text import ModelText

CORS: dict[str, Any] = {
    "allow_methods": ["GET", "POST", "DELETE"],
    "allow_headers": ["*"],
    "expose_headers": ["x-request-id", "retry-after"],
}


def create_app(config: ServerConfig, engine: EngineClient, text: ModelText) -> FastAPI:
    """An ASGI application that owns ``engine`` from its start-up to its shutdown.

    It answers at once; until the engine is ready, generating requests get 503 and ``/ready`` says why. Raises
    ``ValueError`` or ``OSError`` when the file of keys or the audit log cannot be used.
    """
    front = FrontEnd(config=config, engine=engine, text=text)
    audit = AuditLog(config.audit_log) if config.audit_log is not None else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(front.health.wait_engine()), asyncio.create_task(front.health.watch())]
        tasks.append(asyncio.create_task(front.keys.watch(config.keys_seconds)))
        tasks.append(asyncio.create_task(pin_configured(front)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await engine.shutdown()
            if audit is not None:
                audit.close()

    app = FastAPI(title="Plait", version=installed_version(), lifespan=lifespan)
    app.state.front = front
    install_handlers(app)
    for module in (completions, chat, models, tokenize, cache, health, metrics):
        app.include_router(module.router, responses=RESPONSES)
    # Added last is outermost.
    app.add_middleware(Guard, front=front)
    app.add_middleware(LastResort)
    app.add_middleware(ClientConnection, config=config)
    if config.allowed_networks:
        app.add_middleware(ClientNetworks, networks=config.allowed_networks)
    if audit is not None:
        app.add_middleware(Audit, write=audit.write)
    app.add_middleware(RequestId)
    if config.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=config.cors_origins, **CORS)
    if config.root_path:
        app.add_middleware(RootPath, root_path=config.root_path)
    app.add_middleware(ShortWay)
    return app
