"""``plait serve``: find the model, start the engine's process, serve until told to stop."""

import logging
import signal
import ssl
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from plait_engine.config import EngineConfig
from plait_engine.loader.find import ModelNotFoundError, find_model
from plait_engine.phases import Phases, process_began
from plait_engine.remote import RemoteEngine
from plait_server.cli.names import served_names
from plait_server.config import ServerConfig

log = logging.getLogger("plait")


def serve_model(engine_config: EngineConfig, config: ServerConfig) -> int:
    """The exit status: 0 after a shutdown that was asked for."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    phases = Phases(process_began())
    phases.over("configuration")
    try:
        folder = find_model(engine_config.model)
        engine_config, config = resolved(engine_config, config, folder)
        check_tls(config)
    except (ModelNotFoundError, OSError) as error:
        log.error("%s", error)
        return 1
    engine = RemoteEngine(engine_config, progress=lambda text: log.info("engine: %s", text))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ended_early)
    try:
        engine.launch()
        return _served(engine, engine_config, config, folder, phases)
    finally:
        engine.abandon()


def ended_early(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    """Signal handler until the server has its own: ends this process as one that was asked to, and so the engine's."""
    raise SystemExit(0)


def _served(
    engine: RemoteEngine, engine_config: EngineConfig, config: ServerConfig, folder: Path, phases: Phases
) -> int:
    """While the engine starts, the front end gets ready beside it; its modules are loaded only now for that reason."""
    from plait_server.app import create_app
    from plait_server.serve import run
    from plait_server.text.model_text import ModelText

    phases.over("imports")
    try:
        text = ModelText.load(folder)
        phases.over("tokenizer")
        app = create_app(config, engine, text)
    except (OSError, ValueError) as error:
        log.error("%s", error)
        return 1
    for line in engine_config.describe().splitlines():
        log.info("%s", line.strip())
    phases.over("application")
    log.info("front end: %s", phases)
    return run(app, config)


def check_tls(config: ServerConfig) -> None:
    """Raises ``OSError`` when the files are no certificate and key that fit."""
    if config.tls_cert is not None and config.tls_key is not None:
        for path in (config.tls_cert, config.tls_key):
            path.open("rb").close()  # OpenSSL does not say which file is missing.
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key)
        except ssl.SSLError as error:  # Nor which one it could not use.
            both = f"{config.tls_cert} and {config.tls_key}"
            raise OSError(f"{both} are no certificate and private key, as PEM, that fit: {error}") from error


def resolved(engine: EngineConfig, server: ServerConfig, folder: Path) -> tuple[EngineConfig, ServerConfig]:
    """The engine gets the folder, so that both processes read the same one; clients get a name, not a path."""
    from dataclasses import replace

    names = server.served_names or served_names(engine.model, folder)
    return replace(engine, model=str(folder)), replace(server, served_names=names)
