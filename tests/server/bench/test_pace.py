"""When sessions begin."""

import asyncio
import time

import pytest

from plait_server.bench.pace import at_a_rate, at_a_time, when_due
from plait_server.bench.session import Session

SESSIONS = [Session((), system=str(number)) for number in range(20)]


async def test_as_many_at_a_time_as_asked_for_and_all_of_them() -> None:
    running, most, seen = 0, 0, []

    async def play(session: Session) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        seen.append(session)

    await at_a_time(SESSIONS, play, 3)
    assert most == 3
    assert sorted(seen) == sorted(SESSIONS)


async def test_sessions_begin_when_they_are_due_though_others_run() -> None:
    started = time.monotonic()
    begun = []

    async def play(_: Session) -> None:
        begun.append(time.monotonic() - started)
        await asyncio.sleep(0.2)

    await when_due([Session((), at=at) for at in (0.0, 0.05, 0.1)], play)
    assert begun == pytest.approx([0.0, 0.05, 0.1], abs=0.04)
    assert time.monotonic() - started < 0.6


def test_arrivals_at_a_rate_come_by_chance_and_are_the_same_for_a_seed() -> None:
    many = [Session(())] * 2_000
    times = [session.at or 0.0 for session in at_a_rate(many, 10.0, seed=3)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(200, rel=0.1)
    assert times == [session.at for session in at_a_rate(many, 10.0, seed=3)]
    assert times != [session.at for session in at_a_rate(many, 10.0, seed=4)]
