"""GET and DELETE /v1/cache; GET, POST and DELETE /v1/cache/pins. A caller reaches its own tenant's part only."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from plait_engine.cache_order import CacheAnswer, CacheOrder, CacheRefusal, CacheVerb
from plait_engine.pin import PinOrder
from plait_server.answers.pin import report_fields
from plait_server.body import StrictRoute
from plait_server.call import Caller
from plait_server.errors import ApiError
from plait_server.front import Front
from plait_server.pins import messages_prefix, pin
from plait_server.prepare import prompt_ids
from plait_server.protocol.cache import PinBody
from plait_server.protocol.extensions import DEFAULT_TTL_SECONDS

router = APIRouter(route_class=StrictRoute)
SaltQuery = Annotated[str | None, Query(max_length=1_024)]


@router.get("/v1/cache")
async def show_cache(front: Front, call: Caller, cache_salt: SaltQuery = None) -> dict[str, Any]:
    """How much is cached; with a salt, for that salt."""
    front.health.require_engine()
    return cache_fields(await front.engine.cache_order(CacheOrder(tenant=call.tenant, cache_salt=cache_salt)))


@router.delete("/v1/cache")
async def drop_cache(front: Front, call: Caller, cache_salt: SaltQuery = None) -> dict[str, Any]:
    """Forget what is cached, but for pins and what running requests need."""
    front.health.require_engine()
    order = CacheOrder(tenant=call.tenant, verb=CacheVerb.DROP, cache_salt=cache_salt)
    answer = await front.engine.cache_order(order)
    return {**cache_fields(answer), "dropped_tokens": answer.dropped_tokens}


@router.get("/v1/cache/pins")
async def list_pins(front: Front, call: Caller) -> dict[str, Any]:
    """What is pinned, and for how long."""
    front.health.require_engine()
    answer = await front.engine.cache_order(CacheOrder(tenant=call.tenant))
    return {"object": "list", "data": [report_fields(report) for report in answer.pins]}


@router.post("/v1/cache/pins")
async def create_pin(body: PinBody, front: Front, call: Caller) -> dict[str, Any]:
    """Compute a prefix and keep it. The same one again is the same pin, kept longer."""
    front.health.admit()
    async with front.running.entry():
        call.model = front.model(body.model)
        if body.messages:
            special = bool(body.add_special_tokens)
            ids = await messages_prefix(front, body.messages, body.template_kwargs, special=special)
        else:
            assert body.prompt is not None
            special = body.add_special_tokens is not False
            ids = await prompt_ids(front, body.prompt[0], add_special_tokens=special)
        order = PinOrder(ttl_seconds=DEFAULT_TTL_SECONDS if body.ttl_seconds is None else body.ttl_seconds)
        return report_fields(await pin(front, call, ids, body.cache_salt or "", order))


@router.delete("/v1/cache/pins/{pin_id}")
async def delete_pin(pin_id: str, front: Front, call: Caller) -> dict[str, Any]:
    """Take a pin off. What it held is cached on, like anything else."""
    front.health.require_engine()
    answer = await front.engine.cache_order(CacheOrder(tenant=call.tenant, verb=CacheVerb.UNPIN, pin=pin_id))
    if answer.refusal is CacheRefusal.UNKNOWN_PIN:
        raise ApiError(404, "there is no such pin; GET /v1/cache/pins lists those there are", code="pin_not_found")
    if answer.refusal is CacheRefusal.CONFIGURED:
        raise ApiError(403, "this pin is part of the server's configuration; take it out there", code="pin_configured")
    return {"id": pin_id, "object": "cache.pin", "deleted": True}


def cache_fields(answer: CacheAnswer) -> dict[str, Any]:
    return {
        "object": "cache",
        "namespaces": answer.namespaces,
        "tokens": answer.tokens,
        "checkpoints": answer.checkpoints,
        "bytes": answer.n_bytes,
        "pins": len(answer.pins),
        "pin_budget_bytes": answer.pin_budget_bytes,
    }
