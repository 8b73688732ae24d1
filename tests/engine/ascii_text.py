"""A tokenizer as small as the tiny models' vocabulary: printable ASCII, and a few longer tokens."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from plait_engine.grammar import GrammarTokenizer
from plait_engine.runner.grammars import Grammars
from tests.engine.tiny import EOS, VOCAB

SPACES = {" ": "Ġ", "\n": "Ċ"}
CHARACTERS = [SPACES.get(chr(code), chr(code)) for code in (10, *range(32, 127))]
MERGES = [
    ('"', ":"),
    ("{", '"'),
    ('"', ","),
    ("t", "r"),
    ("u", "e"),
    ("tr", "ue"),
    ("a", "b"),
    ("ab", "ab"),
    ("1", "2"),
]


def ascii_tokenizer() -> Tokenizer:
    tokens = ["<pad>", "<s>", "</s>", *CHARACTERS, *("".join(pair) for pair in MERGES)]
    assert tokens[EOS] == "</s>"
    assert len(set(tokens)) <= VOCAB
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens[:3]])
    return tokenizer


def ascii_grammars() -> Grammars:
    text = ascii_tokenizer().to_str()
    return Grammars(lambda: GrammarTokenizer(text, VOCAB, [EOS]))
