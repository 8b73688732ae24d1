"""The demo model behind HTTP, in processes of its own."""

from collections.abc import Iterator

import pytest

from plait_engine.demo_model import DEMO_FOLDER
from plait_server.cli.local_server import local_server


@pytest.fixture(scope="session")
def demo() -> Iterator[str]:
    """The address of a server."""
    if not (DEMO_FOLDER / "config.json").exists():
        pytest.skip("the demo model does not exist yet")
    with local_server(None) as url:
        yield url
