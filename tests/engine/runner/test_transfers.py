"""Arrays arrive as they were, however many share a parcel."""

import numpy as np
import pytest
import torch

from plait_engine.runner.download import Download
from plait_engine.runner.upload import CAPACITY, Upload

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
ARRAYS = [
    np.arange(7, dtype=np.int32),
    np.arange(12, dtype=np.int64).reshape(3, 4),
    np.zeros((0, 5), np.int32),
    np.linspace(0, 1, 5, dtype=np.float64),
    np.arange(24, dtype=np.int32).reshape(4, 6)[:, 1:4],
    np.arange(CAPACITY // 8 + 1, dtype=np.int64),
    np.array([0.5, 2.0], np.float32),
]


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_of_every_kind_arrive_as_they_were(device: str) -> None:
    upload = Upload(torch.device(device))
    for _ in range(3):
        sent = [upload.put(array) for array in ARRAYS]
        upload.send()
        for tensor, array in zip(sent, ARRAYS, strict=True):
            assert tensor.device.type == device
            assert np.array_equal(tensor.cpu().numpy(), array)
            assert tensor.cpu().numpy().dtype == array.dtype


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_sent_before_stays_as_it_is(device: str) -> None:
    upload = Upload(torch.device(device))
    first = upload.put(np.arange(4))
    upload.send()
    upload.put(np.full(4, 9))
    upload.send()
    assert first.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_fetched_is_there_after_waiting(device: str) -> None:
    tensor = torch.arange(1000, device=device) * 2
    download = Download(torch.device(device))
    host = download.bring(tensor)
    download.close()
    download.wait()
    assert host.device.type == "cpu"
    assert host.tolist() == list(range(0, 2000, 2))
