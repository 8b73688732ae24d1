"""The demo model with its states in bf16 and in fp32: how often it finds what it is asked for, and whether it says the
same."""

from tokenizers import Tokenizer

from demo.heldout import LENGTHS, LookUp, look_ups
from plait_engine.demo_model import DEMO_FOLDER
from plait_engine.llm import LLM
from plait_engine.request import SamplingParams
from plait_server.text.chat_template import ChatTemplate
from plait_server.text.tokenizer import TextTokenizer

REPLY_TOKENS = 64
MEMORY_BYTES = 3 << 30
DTYPES = ("float32", "bfloat16")


def demo(device: str, count: int) -> None:
    """``count`` held-out look-ups, greedy, weights in bf16, one table."""
    asked = list(look_ups(Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")), count, 1, LENGTHS))
    said = {dtype: replies(device, dtype, asked) for dtype in DTYPES}
    print(f"demo model, {count} held-out look-ups: found, by tokens of context")
    print(f"{'':24}" + "".join(f"{length:>10,}" for length in LENGTHS) + f"{'all':>10}")
    for dtype, answers in said.items():
        right = [answer == look_up.expected for answer, look_up in zip(answers, asked, strict=True)]
        shares = [[r for r, look_up in zip(right, asked, strict=True) if look_up.length == n] for n in LENGTHS]
        print(f"{'states in ' + dtype:24}" + "".join(f"{sum(s) / max(1, len(s)):>10.1%}" for s in (*shares, right)))
    differ = sum(a != b for a, b in zip(*said.values(), strict=True))
    print(f"{differ} of {count} replies differ")


def replies(device: str, state_dtype: str, asked: list[LookUp]) -> list[str]:
    llm = LLM(
        str(DEMO_FOLDER),
        device=device,
        dtype="bfloat16",
        state_dtype=state_dtype,
        memory_bytes=MEMORY_BYTES,
        max_seqs=16,
        max_batch_tokens=2048,
        prefix_reuse=False,
        tune=False,
    )
    sampling = SamplingParams(temperature=0, max_tokens=REPLY_TOKENS)
    answers = llm.generate(prompts_of(asked), sampling)
    tokenizer = TextTokenizer.load(DEMO_FOLDER)
    return [tokenizer.decode(answer.token_ids, skip_special_tokens=True).strip() for answer in answers]


def prompts_of(asked: list[LookUp]) -> list[list[int]]:
    """As the server renders them."""
    tokenizer = TextTokenizer.load(DEMO_FOLDER)
    template = ChatTemplate((DEMO_FOLDER / "chat_template.jinja").read_text())
    texts = (template.render([{"role": m.role, "content": m.content} for m in look_up.messages]) for look_up in asked)
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]
