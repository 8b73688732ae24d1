"""A key's own limits, at a clock that is moved by hand."""

import pytest

from plait_server.auth.keys import Key, Limits
from plait_server.auth.limits import Limiter
from plait_server.errors import MAX_RETRY_AFTER_SECONDS, ApiError


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def key(**limits: float) -> Key:
    return Key(name="k", tenant="t", digest=b"", limits=Limits(**limits))  # type: ignore[arg-type]


def refused(error: pytest.ExceptionInfo[ApiError]) -> int:
    assert error.value.status_code == 429
    assert error.value.headers is not None
    return int(error.value.headers["Retry-After"])


def test_requests_over_the_minute_wait_as_long_as_they_are_told(clock: Clock) -> None:
    limiter, limited = Limiter(clock), key(requests_per_minute=6)
    for _ in range(6):
        limiter.request(limited)
    with pytest.raises(ApiError) as raised:
        limiter.request(limited)
    assert refused(raised) == 10
    clock.now += 10
    limiter.request(limited)
    with pytest.raises(ApiError):
        limiter.request(limited)


def test_a_pause_saves_up_a_minute_at_most(clock: Clock) -> None:
    limiter, limited = Limiter(clock), key(requests_per_minute=2)
    limiter.request(limited)
    clock.now += 3_600
    limiter.request(limited)
    limiter.request(limited)
    with pytest.raises(ApiError):
        limiter.request(limited)


def test_keys_do_not_use_up_each_others_limits(clock: Clock) -> None:
    limiter = Limiter(clock)
    mine, other = (Key(name=n, tenant="t", digest=b"", limits=Limits(requests_per_minute=1)) for n in "ab")
    limiter.request(mine)
    limiter.request(other)
    with pytest.raises(ApiError):
        limiter.request(mine)


def test_tokens_may_be_overdrawn_once_and_are_then_waited_for(clock: Clock) -> None:
    limiter, limited = Limiter(clock), key(tokens_per_minute=60)
    with limiter.work(limited, 50, 1, 100) as spend:
        spend(70)
    with pytest.raises(ApiError) as raised, limiter.work(limited, 1, 1, 100):
        pass
    assert refused(raised) == 61
    clock.now += 61
    with limiter.work(limited, 1, 1, 100):
        pass


def test_a_wait_is_never_longer_than_clients_honour(clock: Clock) -> None:
    limiter, limited = Limiter(clock), key(tokens_per_minute=1)
    with limiter.work(limited, 10_000, 1, 100):
        pass
    with pytest.raises(ApiError) as raised, limiter.work(limited, 1, 1, 100):
        pass
    assert refused(raised) == MAX_RETRY_AFTER_SECONDS


def test_a_share_of_the_queue_is_given_back_also_after_an_error(clock: Clock) -> None:
    limiter, limited = Limiter(clock), key(queue_share=0.1)
    with limiter.work(limited, 1, 6, 100), limiter.work(limited, 1, 4, 100):
        with pytest.raises(ApiError) as raised, limiter.work(limited, 1, 1, 100):
            pass
        assert refused(raised) == 1
    with pytest.raises(RuntimeError), limiter.work(limited, 1, 10, 100):
        raise RuntimeError
    with limiter.work(limited, 1, 10, 100):
        pass


def test_a_request_larger_than_the_share_is_not_told_to_wait(clock: Clock) -> None:
    with pytest.raises(ApiError) as raised, Limiter(clock).work(key(queue_share=0.01), 1, 2, 100):
        pass
    assert raised.value.status_code == 400


def test_a_limit_set_later_does_not_charge_for_what_was_free(clock: Clock) -> None:
    limiter = Limiter(clock)
    with limiter.work(key(), 10_000, 1, 100) as spend:
        spend(10_000)
    with limiter.work(key(tokens_per_minute=10), 1, 1, 100):
        pass


def test_without_a_key_nothing_is_counted(clock: Clock) -> None:
    limiter = Limiter(clock)
    limiter.request(None)
    with limiter.work(None, 10, 10, 1) as spend:
        spend(5)
    assert not limiter.used
