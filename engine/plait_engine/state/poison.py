"""How free memory is made visible; apart from the ledger so that a configuration can be read without torch."""

from enum import StrEnum


class Poison(StrEnum):
    """What free memory is filled with in tests, so that a read of it cannot pass unseen."""

    OFF = "off"
    NAN = "nan"
    """0xFF: NaN in bf16, fp16 and fp32, -1 as an index."""
    LARGE = "large"
    """0x7B: about 1.3e36 in bf16 and fp32, 6e4 in fp16; finite, so that no NaN check helps."""
