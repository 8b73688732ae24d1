"""POST /v1/chat/completions."""

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from plait_engine.request import Grammar
from plait_server.answers import chat
from plait_server.answers.chat import ChatChunks, ChatOptions
from plait_server.answers.collected import collect
from plait_server.answers.head import Head
from plait_server.answers.options import asked
from plait_server.body import StrictRoute
from plait_server.call import Call, Caller
from plait_server.checkpoints import chat_checkpoints
from plait_server.front import Front, FrontEnd
from plait_server.generation import Job
from plait_server.prepare import Params, chat_prompt, prompt_ids, sampling, token_limit
from plait_server.protocol.chat import ChatBody
from plait_server.protocol.errors import GENERATED
from plait_server.reply.plan import ReplyPlan
from plait_server.reply.reasoning import OPENER
from plait_server.streaming import EventStream

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/chat/completions", response_model=None, responses=GENERATED)
async def create_chat_completion(body: ChatBody, front: Front, call: Caller) -> Response:
    """Answer a conversation."""
    front.health.admit()
    async with front.running.entry():
        head = Head(prefix="chatcmpl", model=front.model(body.model))
        call.model = head.model
        prompt = await chat_prompt(front, body, **body.template_kwargs)
        reply = reply_plan(front, body, prompt)
        options = ChatOptions(**asked(body), logprobs=bool(body.logprobs), reply=reply)
        generation = front.generate(await job_of(front, body, call, prompt, reply), call)
        if not body.stream:
            choices = await collect(generation)
            document = chat.answer(generation, head, choices, options)
            return Response(orjson.dumps(document), media_type="application/json")
    return EventStream(generation, ChatChunks(generation, head, options), front.running)


def reply_plan(front: FrontEnd, body: ChatBody, prompt: str) -> ReplyPlan:
    style = front.reply_style
    return ReplyPlan(
        style=style.calls,
        tools=body.callable_tools,
        forced=body.must_call,
        parallel=body.may_call_several,
        reasons=style.reasons,
        opened=body.opens_reply and prompt.rstrip().endswith(OPENER),
    )


async def job_of(front: FrontEnd, body: ChatBody, call: Call, text: str, reply: ReplyPlan) -> Job:
    prompt = await prompt_ids(front, text, add_special_tokens=bool(body.add_special_tokens), param="messages")
    limit = front.engine.info.max_model_len
    params = Params("messages", "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens")
    max_tokens = token_limit(len(prompt), body.token_limit, limit, default=None, params=params, most=call.max_tokens)
    top = (body.top_logprobs or 0) if body.logprobs else None
    return Job(
        prompts=(prompt,),
        sampling=sampling(front, body, max_tokens=max_tokens, logprobs=top, prompt_logprobs=body.prompt_logprobs),
        n=body.choices,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        grammar=await front.grammars.check(*grammar_of(front, body, reply)),
        include_stop=bool(body.include_stop_str_in_output),
        pin=body.pin,
        marks=await chat_checkpoints(front, body, body.plait, text, prompt, **body.template_kwargs),
        skip_special_tokens=body.skip_special_tokens is not False,
        shown_ids=reply.shown_ids(front.text.tokenizer),
    )


def grammar_of(front: FrontEnd, body: ChatBody, reply: ReplyPlan) -> tuple[Grammar | None, str]:
    """What the whole reply must look like, and the parameter that says so."""
    grammar = reply.grammar(body.grammar, front.text.tokenizer)
    return grammar, "tools" if reply.forced else body.grammar_param
