"""GET /health, /ready and /version."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from plait_server.front import Front
from plait_server.release import installed_version

router = APIRouter()
WAIT = {"Retry-After": "5"}


@router.get("/health", response_model=None)
async def health(front: Front) -> JSONResponse:
    """Whether the process and its engine live. When not, restarting is the cure."""
    trouble = await front.health.live()
    return JSONResponse({"status": trouble or "ok"}, 200 if trouble is None else 503)


@router.get("/ready", response_model=None)
async def ready(front: Front) -> JSONResponse:
    """Whether a request sent now would be served. When not, waiting or another server is the cure."""
    trouble = await front.health.ready()
    return JSONResponse({"status": trouble or "ok"}, 200 if trouble is None else 503, None if trouble is None else WAIT)


@router.get("/version")
async def show_version() -> dict[str, str]:
    return {"version": installed_version()}
