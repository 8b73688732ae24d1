"""API keys: what is written down of them, and how a given one is found. Keys themselves are nowhere on disk."""

import asyncio
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any, NamedTuple

import yaml

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""Of keys and tenants: they go into logs, and a tenant into the cache's namespace."""
DIGEST = re.compile(r"[0-9a-f]{64}")
PREFIX = "sk-plait-"


class KeyFileError(ValueError):
    """The message names the file, the entry and what to mend."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one key may use; None is no limit of its own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers together."""
    max_tokens: int | None = None
    """Of one answer."""
    queue_share: float | None = None
    """Of all sequences that may run or wait at a time."""

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "max_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1")
        share = self.queue_share
        if share is not None and (type(share) not in (int, float) or not 0 < share <= 1):
            raise ValueError("queue_share must be a number above 0 and not above 1")


@dataclass(frozen=True, kw_only=True)
class Key:
    """``digest`` is the SHA-256 of the key. A key is random and long, so it needs no slow hash."""

    name: str
    tenant: str
    digest: bytes
    disabled: bool = False
    limits: Limits = field(default_factory=Limits)


def digest_of(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogateescape")).digest()


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def single_key(secret: str) -> Key:
    """The one of ``--api-key``: its tenant is that of a server without keys."""
    return Key(name="api-key", tenant="", digest=digest_of(secret))


def find(keys: Sequence[Key], secret: str) -> Key | None:
    """The key whose hash is that of ``secret``. Takes as long whichever it is, and when it is none."""
    digest = digest_of(secret)
    found = None
    for key in keys:
        if compare_digest(key.digest, digest):
            found = key
    return found


def read_keys(path: Path) -> tuple[Key, ...]:
    """Raises ``KeyFileError``. An empty file is no keys: nobody gets in."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        # Not what the problem is: that may repeat a key.
        where = "" if error.problem_mark is None else f": look at line {error.problem_mark.line + 1}"
        raise KeyFileError(f"{path} is not valid YAML{where}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path} is not valid YAML") from error
    entries = [] if content is None else content
    if not isinstance(entries, list):
        raise KeyFileError(f"{path} must hold a list, one entry a key, as `plait key` prints them")
    keys = []
    for place, entry in enumerate(entries, start=1):
        try:
            keys.append(parse(entry))
        except ValueError as error:
            raise KeyFileError(f"{path}: entry {place}: {error}") from error
    for what, values in (("name", [key.name for key in keys]), ("sha256", [key.digest for key in keys])):
        if len(set(values)) < len(values):
            raise KeyFileError(f"{path}: two entries have the same {what}")
    return tuple(keys)


def parse(entry: Any) -> Key:
    """Raises ``ValueError``. Messages repeat no values: one may be a key where its hash belongs."""
    limits = {item.name for item in fields(Limits)}
    if not isinstance(entry, dict):
        raise ValueError("must have name, tenant and sha256")
    unknown = entry.keys() - limits - {"name", "tenant", "sha256", "disabled"}
    if unknown:
        raise ValueError(f"no such field: {', '.join(sorted(map(str, unknown)))}")
    digest, disabled = entry.get("sha256"), entry.get("disabled", False)
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ValueError("sha256 must be 64 lower-case hexadecimal digits")
    if not isinstance(disabled, bool):
        raise ValueError("disabled must be true or false")
    return Key(
        name=checked_name(entry, "name"),
        tenant=checked_name(entry, "tenant"),
        digest=bytes.fromhex(digest),
        disabled=disabled,
        limits=Limits(**{name: value for name, value in entry.items() if name in limits}),
    )


def checked_name(entry: Mapping[str, Any], what: str) -> str:
    value = entry.get(what)
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"{what} must be 1 to 64 letters, digits or any of . _ @ - and begin with a letter or digit")
    return value


class Stamp(NamedTuple):
    """Changes whenever a file is written or another one takes its place."""

    inode: int
    modified: int
    size: int

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        status = path.stat()
        return cls(status.st_ino, status.st_mtime_ns, status.st_size)


class KeyStore:
    """The keys in force. A file that was changed for the worse changes nothing: the keys before stay."""

    def __init__(self, file: Path | None = None, secret: str | None = None) -> None:
        self._file = file
        self._fixed = () if secret is None else (single_key(secret),)
        self._stamp: Stamp | None = None
        self.keys: tuple[Key, ...] = self._fixed
        if file is not None:
            self._read(file)

    @property
    def required(self) -> bool:
        """Whether requests need a key at all."""
        return self._file is not None or bool(self._fixed)

    def find(self, secret: str) -> Key | None:
        return find(self.keys, secret)

    async def watch(self, seconds: float) -> None:
        """Looks at the file for as long as it is not cancelled."""
        while self._file is not None:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        """Takes over what the file says now, if it says something else and makes sense."""
        if self._file is None:
            return
        try:
            if Stamp.of(self._file) != self._stamp:
                self._read(self._file)
                log.info("%s: %d keys are in force", self._file, len(self.keys))
        except (OSError, KeyFileError) as error:
            log.error("the keys stay as they are: %s", error)

    def _read(self, file: Path) -> None:
        try:
            self._stamp = Stamp.of(file)
        except OSError as error:
            raise KeyFileError(f"{file} cannot be read: {error.strerror}") from error
        self.keys = self._fixed + read_keys(file)
