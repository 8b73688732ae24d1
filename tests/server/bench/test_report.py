"""The numbers add up."""

import pytest

from plait_server.bench.report import lines, report, spread
from plait_server.bench.target import Measured

USAGE = {"prompt_tokens": 100, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 60}}


def test_a_report_of_three_requests_one_of_which_failed() -> None:
    measured = [
        Measured(0.0, [0.1, 0.2, 0.4], 0.5, "abc", USAGE),
        Measured(0.0, [0.3], 0.3, "a", {"prompt_tokens": 100, "completion_tokens": 1}),
        Measured(0.0, [0.1], 0.2, error="status 503: full"),
    ]
    numbers = report(measured, 2.0)
    assert numbers["requests"] == {"completed": 2, "failed": 1}
    assert numbers["tokens"] == {"input": 200, "output": 5, "cached": 60}
    assert numbers["cached_share"] == 0.3
    assert numbers["per_second"] == {"requests": 1.0, "input": 100.0, "output": 2.5}
    assert numbers["time_to_first_token"]["mean"] == pytest.approx(0.2)
    assert (numbers["inter_token"]["min"], numbers["inter_token"]["max"]) == pytest.approx((0.1, 0.2))
    assert numbers["end_to_end"]["p50"] == pytest.approx(0.4)
    assert numbers["errors"] == {"status 503: full": 1}
    assert "failed 1 times: status 503: full" in lines(numbers)


def test_percentiles() -> None:
    found = spread([float(number) for number in range(101)])
    assert found == {"mean": 50, "min": 0, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}


def test_nothing_measured_is_nothing_told() -> None:
    numbers = report([], 1.0)
    assert numbers["time_to_first_token"] is None
    assert numbers["cached_share"] == 0.0
