"""An engine on a GPU that nobody has measured: the first start tunes and keeps what it finds, the second one knows."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from plait_engine.build import Built, build_engine
from plait_engine.config import EngineConfig
from plait_engine.demo_model import DEMO_FOLDER
from plait_engine.request import Request, SamplingParams
from plait_engine.runner import tuning as tuning_of_engine
from plait_kernels import tuning
from plait_kernels.cuda import bench
from plait_kernels.tuning import forget, found_path, read_table, tunables

pytestmark = pytest.mark.gpu

SLUG = "a-gpu-that-nobody-has"
PROMPT = tuple(range(20, 220))


@pytest.fixture
def unknown_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever GPU this is, it has another name, an empty cache folder, and little time."""
    for device in (torch.device("cuda"), torch.device("cuda", torch.cuda.current_device())):
        monkeypatch.setitem(tuning._slugs, device, SLUG)
    monkeypatch.setattr(tuning, "CACHE", tmp_path)
    monkeypatch.setattr(tuning_of_engine, "SECONDS", 8.0)
    monkeypatch.setattr("plait_kernels.tuning.search.MOST", 3)
    monkeypatch.setattr(bench, "LEAST_SECONDS", 0.002)
    forget()
    yield
    forget()


def start(lines: list[str]) -> Built:
    config = EngineConfig(
        model=str(DEMO_FOLDER),
        device="cuda",
        dtype="bfloat16",
        memory_bytes=1 << 30,
        max_seqs=4,
        max_batch_tokens=512,
        max_model_len=320,
    )
    return build_engine(config, lines.append)


def answer(built: Built) -> tuple[int, ...]:
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    built.engine.add(Request(id="a", prompt=PROMPT, sampling=sampling))
    tokens: list[int] = []
    while not built.engine.idle:
        for delta in built.engine.step():
            assert delta.error is None
            tokens.extend(delta.token_ids)
    return tuple(tokens)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("unknown_gpu")
def test_the_first_start_tunes_and_the_second_one_knows() -> None:
    first: list[str] = []
    built = start(first)
    told = [line for line in first if line.startswith("tuning")]
    assert f"{SLUG} was not measured" in told[0]
    assert any(line.startswith("tuning 1 of ") and " us, by default " in line for line in told), told
    assert "faster now" in told[-1]
    assert str(found_path(SLUG)) in told[-1]
    assert not any("somebody waited" in line for line in first)
    found = read_table(found_path(SLUG))
    assert "linear" in found
    for kernel, configs in found.items():
        for config in configs.values():
            assert config.keys() >= tunables()[kernel].default.keys()
    assert len(answer(built)) == 8
    built.engine.check()

    if "left for the next start" not in told[-1]:
        assert {"attention_decode", "attention_prefill"} <= set(found)
        forget()
        second: list[str] = []
        built = start(second)
        told = [line for line in second if line.startswith("tuning")]
        assert len(told) == 1
        assert told[0].endswith(f"configurations from {found_path(SLUG)}")
        assert read_table(found_path(SLUG)) == found
        assert len(answer(built)) == 8
