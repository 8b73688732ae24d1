"""GET /health, /health/deep, /ready and /version."""

import asyncio
import time

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from plait_engine.client import EngineError
from plait_engine.request import SamplingParams
from plait_server.answers.collected import collect
from plait_server.call import Caller
from plait_server.front import Front
from plait_server.generation import Job
from plait_server.release import installed_version

router = APIRouter()
WAIT = {"Retry-After": "5"}
DEEP_SECONDS = 10
FIRST = -(2**31)
"""Before all that waits."""


@router.head("/health", include_in_schema=False)
@router.get("/health", response_model=None)
async def health(front: Front) -> JSONResponse:
    """Whether the process and its engine live. When not, restarting is the cure."""
    trouble = await front.health.live()
    return JSONResponse({"status": trouble or "ok"}, 200 if trouble is None else 503)


@router.head("/ready", include_in_schema=False)
@router.get("/ready", response_model=None)
async def ready(front: Front) -> JSONResponse:
    """Whether a request sent now would be served. When not, waiting or another server is the cure."""
    trouble = await front.health.ready()
    return JSONResponse({"status": trouble or "ok"}, 200 if trouble is None else 503, None if trouble is None else WAIT)


@router.get("/health/deep", response_model=None)
async def deep_health(front: Front, call: Caller) -> JSONResponse:
    """Whether a token can be generated, by generating one. Wants a key where there are keys, and is no probe."""
    started = time.monotonic()
    trouble = await front.health.ready()
    if trouble is None:
        job = Job(prompts=((0,),), sampling=SamplingParams(max_tokens=1), priority=FIRST)
        try:
            async with asyncio.timeout(DEEP_SECONDS), front.running.entry():
                await collect(front.generate(job, call))
        except TimeoutError:
            trouble = f"no token within {DEEP_SECONDS} seconds"
        except EngineError as error:
            trouble = str(error)
    seconds = round(time.monotonic() - started, 4)
    return JSONResponse({"status": trouble or "ok", "seconds": seconds}, 200 if trouble is None else 503)


@router.get("/version")
async def show_version() -> dict[str, str]:
    return {"version": installed_version()}
