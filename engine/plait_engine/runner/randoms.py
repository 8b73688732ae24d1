"""Counter-based random numbers: one per sampled token, from (seed, sequence, position) and nothing else.

So a request with a seed gives the same tokens whatever else is in the batch, and a preempted sequence goes on as if
nothing had happened. The mixer is SplitMix64's finaliser (Steele, Lea, Flood 2014), applied once per word.
"""

_MASK = (1 << 64) - 1


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, sequence: int, position: int) -> float:
    """In [0, 1), with 53 random bits."""
    z = 0
    for word in (seed & _MASK, (seed >> 64) & _MASK, sequence, position):
        z = _mix((z + 0x9E3779B97F4A7C15 + word) & _MASK)
    return (z >> 11) * 2.0**-53
