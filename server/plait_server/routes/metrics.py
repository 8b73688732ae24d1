"""GET /metrics."""

from fastapi import APIRouter
from starlette.responses import Response

from plait_server.front import Front
from plait_server.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/metrics", response_model=None)
async def metrics(front: Front) -> Response:
    """For Prometheus, in its text format."""
    front.metrics.engine.stats = await front.health.stats()
    return Response(front.metrics.exposition(), media_type=CONTENT_TYPE)
