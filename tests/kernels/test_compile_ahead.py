"""What is launched ahead of time is compiled and loaded, not run; launches find it, and what they miss is told."""

import json

import pytest

from tests.kernels.uninterpreted import output_of


@pytest.mark.timeout(600)
def test_what_was_asked_for_ahead_is_there_when_it_is_launched() -> None:
    found = json.loads(output_of("tests.kernels.compile_ahead_here"))
    assert found["asked"] == found["compiled"] == found["by threads"] == 8
    assert found["launched before"] == 0
    assert found["launched"] == 16
    assert found["late"] == ["_rms_norm"]
    assert found["seconds"] > 0
