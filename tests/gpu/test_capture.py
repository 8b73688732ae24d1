"""Capturing a step: what may happen in one, and what is left behind where it cannot be captured."""

import importlib.util

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl

from plait_kernels.cuda.graph import capture
from plait_kernels.recording import NotReplayableError

pytestmark = pytest.mark.gpu


@triton.jit
def _add(x, y, BY: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 16)
    tl.store(y + at, tl.load(x + at) + BY)


def added(x: Tensor, by: int) -> Tensor:
    y = torch.empty_like(x)
    _add[(1,)](x, y, BY=by)
    return y


def waits(x: Tensor) -> float:
    return float(x.sum().item())


def assert_captures(by: int) -> None:
    """A captured step reads what its input holds when it is replayed."""
    x = torch.zeros(16, device="cuda")
    recording = capture(lambda: added(x, by))
    x.fill_(3)
    recording.run()
    assert recording.result.tolist() == [3 + by] * 16


@pytest.mark.parametrize("known", [False, True])
def test_a_step_that_waits_for_the_device_is_refused_and_others_are_captured_as_before(known: bool) -> None:
    x = torch.ones(16, device="cuda")
    assert_captures(1)
    for _ in range(3):
        with pytest.raises(NotReplayableError, match="cannot be captured"):
            capture(lambda: waits(x), known=known)
        assert_captures(1)


def test_recordings_outlive_captures_that_failed() -> None:
    x = torch.zeros(16, device="cuda")
    before = capture(lambda: added(x, 7))
    with pytest.raises(NotReplayableError):
        capture(lambda: waits(x))
    after = capture(lambda: added(x, 8))
    for recording, by in ((before, 7), (after, 8), (before, 7)):
        x.fill_(by)
        recording.run()
        assert recording.result.tolist() == [2 * by] * 16


def test_random_numbers_can_be_drawn_after_a_capture_that_failed() -> None:
    with pytest.raises(NotReplayableError):
        capture(lambda: waits(torch.ones(16, device="cuda")))
    assert torch.randn(1000, device="cuda").std() > 0.5


def test_a_kernel_may_be_loaded_for_the_first_time_in_a_captured_step() -> None:
    """And the step was not run for it: nothing was added before the replay."""
    x, ran = torch.zeros(16, device="cuda"), []
    assert_captures(1)

    def step() -> Tensor:
        ran.append(None)
        return added(x, 12345)  # a kernel of its own

    recording = capture(step, known=True)
    assert len(ran) == 1
    recording.run()
    assert recording.result.tolist() == [12345] * 16


def test_an_error_of_the_step_itself_is_raised_as_it_is() -> None:
    def step() -> Tensor:
        raise ZeroDivisionError("of the step")

    with pytest.raises(ZeroDivisionError, match="of the step"):
        capture(step, known=True)
    assert_captures(1)
