"""Flags over file over defaults, once, into the two configurations."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from plait_engine.config import ConfigError, EngineConfig, LoadFormat, parse_bytes
from plait_engine.demo_model import DEMO_FOLDER
from plait_server.config import ServerConfig
from plait_server.configured_pins import configured_pins

RENAMED = {
    "memory": "memory_bytes",
    "served_model_name": "served_names",
    "allow_network": "allowed_networks",
    "trusted_proxy": "trusted_proxies",
    "cors_origin": "cors_origins",
    "request_timeout": "request_timeout_seconds",
}
"""Options whose name on the command line is not the field's."""
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")


class OptionError(Exception):
    """The message names the option and what it may be."""


@dataclass(frozen=True)
class Options:
    engine: EngineConfig
    server: ServerConfig


def read_options(file: Path | None, flags: Mapping[str, object]) -> Options:
    """Raises ``OptionError``. Flags that are None were not given."""
    given = read_file(file) if file is not None else {}
    given |= {name: value for name, value in flags.items() if value is not None}
    values = {RENAMED.get(name, name): value for name, value in given.items()}
    values.setdefault("model", str(DEMO_FOLDER))
    fields = {kind: {field.name for field in dataclasses.fields(kind)} for kind in (EngineConfig, ServerConfig)}
    if unknown := sorted(values.keys() - fields[EngineConfig] - fields[ServerConfig]):
        raise OptionError(f"{file}: no such option: {', '.join(unknown)}")
    try:
        return Options(
            EngineConfig(**typed(EngineConfig, pick(values, fields[EngineConfig]))),
            ServerConfig(**typed(ServerConfig, pick(values, fields[ServerConfig]))),
        )
    except (ConfigError, ValueError) as error:
        raise OptionError(str(error)) from error


def pick(values: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def read_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise OptionError(f"{path} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise OptionError(f"{path} must hold options, one `name: value` a line")
    return content


def typed(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values in their fields' types. YAML and the command line give plain strings, numbers and lists."""
    hints = get_type_hints(kind)
    return {name: convert(name, value, hints[name]) for name, value in values.items()}


def convert(name: str, value: Any, wanted: Any) -> Any:
    if name == "memory_bytes":
        return parse_bytes(value)
    if name == "pins":
        return configured_pins(value)
    if get_origin(wanted) is tuple:
        return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)
    if Path in get_args(wanted) and isinstance(value, str | Path):
        return Path(value).expanduser()
    if name == "log_level" and value not in LOG_LEVELS:
        raise OptionError(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {value!r}")
    if name == "load_format" and value not in list(LoadFormat):
        raise OptionError(f"load_format must be one of {', '.join(LoadFormat)}, not {value!r}")
    kinds = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    for kind in kinds:
        if get_origin(kind) is None and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    for kind in kinds:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, str):
            return kind(value)
    names = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
    raise OptionError(f"{name} must be of type {names}, not {value!r}")
