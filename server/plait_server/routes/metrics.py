"""GET /metrics."""

from fastapi import APIRouter
from starlette.responses import Response

from plait_server.front import Front
from plait_server.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/metrics", response_model=None)
async def metrics(front: Front) -> Response:
    """For Prometheus, in its text format."""
    health = front.health
    stats = await health.ask(front.config.scrape_seconds)
    front.metrics.state(
        up=health.trouble() is None,
        ready=health.obstacle() is None,
        queue_limit=front.engine.info.max_queue if stats is not None else 0,
        stats=stats,
    )
    return Response(front.metrics.exposition(), media_type=CONTENT_TYPE)
