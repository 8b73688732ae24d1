"""The engine in a process of its own: the loop that reads messages, steps, and sends what came out.

Started as ``python -m plait_engine.process ADDRESS PARENT < CONFIG`` by ``plait_engine.remote``, so that a crash, a
long step or a busy interpreter on one side never stops the other.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import zmq

from plait_engine.build import build_engine
from plait_engine.client import EngineStats
from plait_engine.config import ConfigError, EngineConfig
from plait_engine.engine import CannotFit, Engine
from plait_engine.layer_plan import LayerPlanError
from plait_engine.loader.checkpoint import WeightsError
from plait_engine.loader.find import ModelNotFoundError
from plait_engine.messages import (
    Abort,
    Add,
    AskCache,
    AskStats,
    CacheReply,
    Deltas,
    Failed,
    FromEngine,
    Progress,
    Ready,
    Refused,
    Shutdown,
    StatsReply,
    ToEngine,
    decode_to_engine,
    encode,
)
from plait_engine.models.config import ConfigError as ModelConfigError
from plait_engine.phases import Phases, process_began

IDLE_POLL_MILLISECONDS = 200
STUCK_SECONDS = 30.0
QUIET_SECONDS = 0.2
"""Nobody has come for so long: time to audit hits, one step at a time."""
PARENT_SECONDS = 0.5
FORESEEN = (ConfigError, LayerPlanError, ModelConfigError, ModelNotFoundError, WeightsError)
"""Their messages say what to change, and where in the code they were found helps nobody to do so."""


class EngineProcess:
    """Serves one engine over one PAIR socket until told to end, or until the parent is gone."""

    def __init__(self, address: str, parent: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.connect(address)
        self._parent = parent
        self._last_progress = self._last_work = time.monotonic()
        self._steps = 0

    def run(self, config: EngineConfig, phases: Phases) -> None:
        try:
            with ends_with(self._parent):
                built = build_engine(config, lambda text: self._send(Progress(text)), phases)
            self._send(Ready(built.info))
            while os.getppid() == self._parent and self._turn(built.engine):
                pass
            built.engine.close()
        except FORESEEN as error:
            self._send(Failed(str(error)))
        except Exception as error:  # Whatever it is, the front end must hear of it.
            traceback.print_exc()
            self._send(Failed(f"{type(error).__name__}: {error}"))
        finally:
            self._socket.close(linger=1000)
            self._context.term()

    def _turn(self, engine: Engine) -> bool:
        """Read what has come, then do one step. False: time to end."""
        if engine.idle:
            self._last_progress = time.monotonic()
            if self._last_progress - self._last_work < QUIET_SECONDS or not engine.audit():
                self._socket.poll(IDLE_POLL_MILLISECONDS)
        while self._socket.poll(0):
            if not self._handle(engine, decode_to_engine(self._socket.recv())):
                return False
        engine.upgrade_kernels()
        deltas = engine.step()
        if deltas:
            self._send(Deltas(deltas))
        if engine.steps > self._steps:
            self._steps = engine.steps
            self._last_progress = self._last_work = time.monotonic()
        return True

    def _handle(self, engine: Engine, message: ToEngine) -> bool:
        match message:
            case Add(request):
                try:
                    engine.add(request)
                except CannotFit as error:
                    self._send(Refused(request.id, str(error)))
            case Abort(request_id, index):
                engine.abort(request_id, index)
            case AskStats():
                self._send(StatsReply(self._stats(engine)))
            case AskCache(order):
                self._send(CacheReply(engine.cache_order(order)))
            case Shutdown():
                return False
        return True

    def _stats(self, engine: Engine) -> EngineStats:
        basic = EngineStats(
            running=len(engine.scheduler.running),
            waiting=len(engine.scheduler.waiting),
            stuck=time.monotonic() - self._last_progress > STUCK_SECONDS,
        )
        try:
            return msgspec.structs.replace(
                basic,
                gauges=engine.gauges(),
                counters=engine.counters(),
                histograms=engine.stats.histograms(),
                bounds=engine.stats.all_bounds(),
            )
        except Exception:  # Figures must not stop the engine.
            traceback.print_exc()
            return basic

    def _send(self, message: FromEngine) -> None:
        self._socket.send(encode(message))


@contextmanager
def ends_with(parent: int) -> Iterator[None]:
    """Inside, this process ends soon after its parent: a start may take minutes, and looks at nothing meanwhile."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PARENT_SECONDS):
            if os.getppid() != parent:
                os._exit(1)

    threading.Thread(target=watch, name="parent's end", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The front end drains, then ends us, whoever signals us too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    phases = Phases(process_began())
    phases.over("imports")
    given = sys.stdin.buffer.read()
    if not given:
        return  # Whoever started this was ended before he could say what for.
    config = msgspec.json.decode(given, type=EngineConfig)
    EngineProcess(sys.argv[1], parent=int(sys.argv[2])).run(config, phases)


if __name__ == "__main__":
    main()
