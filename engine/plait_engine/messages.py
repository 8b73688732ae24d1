"""What front end and engine process say to each other: msgpack over ZeroMQ, never pickle."""

import msgspec

from plait_engine.cache_order import CacheAnswer, CacheOrder
from plait_engine.client import EngineInfo, EngineStats
from plait_engine.request import Delta, Request


class Add(msgspec.Struct, frozen=True, tag=True):
    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    index: int | None = None


class AskStats(msgspec.Struct, frozen=True, tag=True):
    """The engine answers with one ``EngineStats`` message."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End at once; what runs is dropped."""


class AskCache(msgspec.Struct, frozen=True, tag=True):
    """The engine answers with one ``CacheReply``, in the order of the questions."""

    order: CacheOrder


ToEngine = Add | Abort | AskStats | AskCache | Shutdown


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Start-up is at this point, for the log."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start, or ends because of an error; the last message it sends."""

    reason: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The request was not taken; nothing else comes for it."""

    request_id: str
    reason: str


class Deltas(msgspec.Struct, frozen=True, tag=True):
    deltas: list[Delta]


class StatsReply(msgspec.Struct, frozen=True, tag=True):
    stats: EngineStats


class CacheReply(msgspec.Struct, frozen=True, tag=True):
    answer: CacheAnswer


FromEngine = Progress | Ready | Failed | Refused | Deltas | StatsReply | CacheReply

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
