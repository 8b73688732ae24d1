"""Candidates are compiled before they are timed; one that cannot be made is an error of its own launch only."""

import json

import pytest

from tests.kernels.uninterpreted import output_of


@pytest.mark.timeout(600)
def test_what_cannot_be_made_does_not_keep_others_from_being_made() -> None:
    found = json.loads(output_of("tests.kernels.bench_here"))
    assert found["compiled"] == found["launched"] == 2
    assert found["launched before"] == 0
    assert found["failure"] == "OutOfResources"
    assert found["late"] == 1, "only the one that cannot be made is looked for again"
    assert found["over"] == [False, True], "when the time for compiling is used up"
