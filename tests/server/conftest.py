"""A small tokenizer and chat template, an engine without a model, and servers made of them."""

from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.front import FrontEnd
from plait_server.text.chat_template import ChatTemplate
from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer

PROSE = """The quick brown fox jumps over the lazy dog. A weaver plaits three strands into one braid: stop, go on, stop.
Müde Füße, naïve façade, 日本語のテキスト, emoji 🙂🙃👩‍👩‍👧. Numbers 0123456789 and code: def f(x): return x + 1
"""
TEMPLATE = """{%- for message in messages -%}
<|start|>{{ message['role'] }}<|mid|>{{ message['content'] }}<|end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant<|mid|>{%- endif -%}"""
SPECIAL = ["<|end|>", "<|start|>", "<|mid|>"]


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE of 512 tokens; ``<|end|>`` is id 0, and nothing is added around a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROSE] * 4, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(byte_level_tokenizer())


@pytest.fixture(scope="session")
def text(tokenizer: TextTokenizer) -> ModelText:
    special = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    return ModelText(tokenizer=tokenizer, template=ChatTemplate(TEMPLATE, special), special_tokens=special)


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine, text: ModelText) -> AsyncIterator[httpx.AsyncClient]:
    """Against the application in this event loop, without a socket: for everything but streams and disconnects."""
    app = create_app(ServerConfig(served_names=("fake", "other-name")), engine, text)
    async with app.router.lifespan_context(app):
        await app.state.front.health.settled.wait()
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://plait", timeout=20) as client:
            yield client


def front_of(client: httpx.AsyncClient) -> FrontEnd:
    """The front end behind the ``client`` fixture."""
    front: FrontEnd = client._transport.app.state.front  # type: ignore[attr-defined]
    return front


@pytest.fixture
def live(text: ModelText) -> Iterator[LiveServer]:
    with LiveServer(FakeEngine(), text) as server:
        yield server


@pytest.fixture
def sdk(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client
