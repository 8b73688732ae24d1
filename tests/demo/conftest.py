"""The shipped tokenizer, which the generator of held-out look-ups counts with."""

import pytest
from tokenizers import Tokenizer

from demo.heldout import SHIPPED


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
