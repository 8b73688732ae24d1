"""Random numbers depend on seed, sequence and position alone, and are spread evenly."""

from plait_engine.runner.randoms import uniform


def test_every_word_counts() -> None:
    base = uniform(1, 2, 3)
    assert base == uniform(1, 2, 3)
    others = (uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4), uniform(1 + (1 << 64), 2, 3), uniform(-1, 2, 3))
    assert len({base, *others}) == 6


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    for numbers in ([uniform(7, 0, p) for p in range(8000)], [uniform(s, 0, 5) for s in range(8000)]):
        assert all(0.0 <= number < 1.0 for number in numbers)
        for cell in range(10):
            share = sum(cell / 10 <= number < (cell + 1) / 10 for number in numbers) / 8000
            assert abs(share - 0.1) < 0.017


def test_neighbours_are_not_alike() -> None:
    pairs = [(uniform(3, 0, p), uniform(3, 0, p + 1)) for p in range(4000)]
    mean = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / 4000
    assert abs(mean) < 0.007
