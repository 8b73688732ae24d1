"""The chunked scan against the recurrence as it is written down."""

import pytest
import torch

from demo.scan import chunk_scan, sequential_scan


@pytest.mark.parametrize(("length", "chunk"), [(8, 8), (16, 8), (24, 8), (64, 64), (192, 64), (20, 4)])
def test_chunks_give_what_the_recurrence_gives(length: int, chunk: int) -> None:
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, b, c = draw(2, length, 3, 5), draw(2, length, 4), draw(2, length, 4)
    dt, rate = draw(2, length, 3).exp(), -draw(3).exp()
    torch.testing.assert_close(
        chunk_scan(x, dt, rate, b, c, chunk), sequential_scan(x, dt, rate, b, c), rtol=0, atol=1e-10
    )


def test_the_state_crosses_chunk_borders() -> None:
    x = torch.zeros(1, 16, 1, 2, dtype=torch.float64)
    x[0, 0] = 1  # only the first position has input
    ones = torch.ones(1, 16, 1, dtype=torch.float64)
    y = chunk_scan(x, ones, -0.1 * torch.ones(1, dtype=torch.float64), ones, ones, 4)
    expected = torch.exp(-0.1 * torch.arange(16, dtype=torch.float64))
    torch.testing.assert_close(y[0, :, 0, 0], expected)
