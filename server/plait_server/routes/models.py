"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from fastapi import APIRouter

from plait_server.front import Front, FrontEnd, unknown_model

router = APIRouter()


@router.get("/v1/models")
async def list_models(front: Front) -> dict[str, Any]:
    """The served model, once under each of its names."""
    front.health.require_engine()
    return {"object": "list", "data": [card(front, name) for name in front.names]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, front: Front) -> dict[str, Any]:
    front.health.require_engine()
    if name not in front.names:
        raise unknown_model(name, front.names)
    return card(front, name)


def card(front: FrontEnd, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": front.created,
        "owned_by": "plait",
        "root": front.engine.info.model,
        "parent": None,
        "max_model_len": front.engine.info.max_model_len,
    }
