"""POST /v1/completions."""

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from plait_server.answers import completion
from plait_server.answers.best import best
from plait_server.answers.collected import collect
from plait_server.answers.completion import CompletionChunks, CompletionOptions
from plait_server.answers.head import Head
from plait_server.answers.options import asked
from plait_server.body import StrictRoute
from plait_server.call import Call, Caller
from plait_server.checkpoints import asked_checkpoints
from plait_server.errors import bad
from plait_server.front import Front, FrontEnd
from plait_server.generation import Job
from plait_server.prepare import Params, prompt_ids, sampling, token_limit
from plait_server.protocol.completions import DEFAULT_MAX_TOKENS, CompletionBody
from plait_server.protocol.errors import GENERATED
from plait_server.streaming import EventStream

router = APIRouter(route_class=StrictRoute)
PARAMS = Params("prompt", "max_tokens")


@router.post("/v1/completions", response_model=None, responses=GENERATED)
async def create_completion(body: CompletionBody, front: Front, call: Caller) -> Response:
    """Continue one prompt or several."""
    front.health.admit()
    async with front.running.entry():
        head = Head(prefix="cmpl", model=front.model(body.model))
        call.model = head.model
        job = await job_of(front, body, call)
        options = options_of(front, body, job)
        generation = front.generate(job, call)
        if not body.stream:
            choices = best(await collect(generation), body.drawn, body.choices)
            document = completion.answer(generation, head, choices, options)
            return Response(orjson.dumps(document), media_type="application/json")
    return EventStream(generation, CompletionChunks(generation, head, options), front.running)


async def job_of(front: FrontEnd, body: CompletionBody, call: Call) -> Job:
    most = front.config.max_sequences_per_request
    if len(body.prompt) * body.drawn > most:
        name = "n" if body.best_of is None else "best_of"
        raise bad(name, f"prompts times {name} is {len(body.prompt) * body.drawn}; at most {most} are allowed")
    if body.explain_cache and len(body.prompt) > 1:
        raise bad("plait", "pin and explain_cache are for one prompt; send prompts one by one")
    add_special_tokens = body.add_special_tokens is not False
    prompts = [await prompt_ids(front, prompt, add_special_tokens=add_special_tokens) for prompt in body.prompt]
    longest = max(map(len, prompts))
    limit = front.engine.info.max_model_len
    max_tokens = token_limit(
        longest, body.max_tokens, limit, default=DEFAULT_MAX_TOKENS, params=PARAMS, most=call.max_tokens
    )
    echoed = body.logprobs if body.echo else None
    ranking = 0 if body.drawn > body.choices else None
    wanted = [number for number in (body.prompt_logprobs, echoed) if number is not None]
    return Job(
        prompts=tuple(prompts),
        sampling=sampling(
            front,
            body,
            max_tokens=max_tokens,
            logprobs=ranking if body.logprobs is None else body.logprobs,
            prompt_logprobs=max(wanted, default=None),
        ),
        n=body.drawn,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        grammar=await front.grammars.check(body.grammar, body.grammar_param),
        include_stop=bool(body.include_stop_str_in_output),
        pin=body.pin,
        marks=asked_checkpoints(body.plait, prompts),
        skip_special_tokens=body.skip_special_tokens is not False,
        offsets=tuple(map(len, echoes(front, body, prompts))),
    )


def echoes(front: FrontEnd, body: CompletionBody, prompts: list[tuple[int, ...]]) -> tuple[str, ...]:
    """The prompts' texts: as they were given, or decoded when they were given as ids. Empty without echo."""
    if not body.echo:
        return ()
    decode = front.text.tokenizer.decode
    skip = body.skip_special_tokens is not False
    return tuple(
        prompt if isinstance(prompt, str) else decode(ids, skip_special_tokens=skip)
        for prompt, ids in zip(body.prompt, prompts, strict=True)
    )


def options_of(front: FrontEnd, body: CompletionBody, job: Job) -> CompletionOptions:
    return CompletionOptions(
        **asked(body),
        logprobs=body.logprobs is not None,
        echoes=echoes(front, body, list(job.prompts)),
        told=body.choices,
    )
