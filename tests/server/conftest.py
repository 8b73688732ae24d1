"""A small tokenizer and chat template, an engine without a model, and servers made of them."""

from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest

from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.front import FrontEnd
from plait_server.text.chat_template import ChatTemplate
from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer
from tests.server.tiny_text import SPECIAL_TOKENS, TEMPLATE, byte_level_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(byte_level_tokenizer())


@pytest.fixture(scope="session")
def text(tokenizer: TextTokenizer) -> ModelText:
    template = ChatTemplate(TEMPLATE, SPECIAL_TOKENS)
    return ModelText(tokenizer=tokenizer, template=template, special_tokens=SPECIAL_TOKENS)


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
