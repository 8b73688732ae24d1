"""Case 53 on a real model over HTTP: what a key's tenant has cached is nothing to anybody else, by any sign."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from plait_server.auth.keys import digest_of
from plait_server.bench.words import words
from plait_server.cli.local_server import local_server

PROMPT = words(300, "shared")
TENANTS = {"a": "team-a", "a2": "team-a", "b": "team-b", "c": "team-c"}
"""By key. The keys are their names, which is no secret worth keeping."""
SMALL = ("--memory", "110MiB", "--max-model-len", "1024", "--max-seqs", "8", "--dtype", "float32")


class Tenant:
    """A client with a key."""

    def __init__(self, url: str, key: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=120, headers={"authorization": f"Bearer {key}"})

    def ask(self, prompt: str, **more: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "plait": {"explain_cache": True}} | more
        answer: dict[str, Any] = self.client.post("/v1/completions", json=body).raise_for_status().json()
        return answer

    def signs(self, prompt: str, **more: Any) -> dict[str, Any]:
        """Of one request, everything that could tell of others: what it is told, and what was computed for it."""
        before = self.computed()
        answer = self.ask(prompt, **more)
        told = {name: value for name, value in answer.items() if name not in ("id", "created")}
        return told | {"computed": self.computed() - before, "cache": self.client.get("/v1/cache").json()}

    def cached(self, prompt: str, **more: Any) -> int:
        found: int = self.ask(prompt, **more)["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    def computed(self) -> float:
        """Tokens of all steps so far. Counted in turns with the steps, so what was answered is in it."""
        return figure(self.client, "plait_batch_tokens_sum")


def figure(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[{{ ]", line))


def write_keys(path: Path, tenants: dict[str, str]) -> None:
    entries = [{"name": key, "tenant": t, "sha256": digest_of(key).hex()} for key, t in tenants.items()]
    (path.parent / "new").write_text(yaml.safe_dump(entries))
    (path.parent / "new").replace(path)


@contextmanager
def serving(keys: Path, *flags: str) -> Iterator[dict[str, Tenant]]:
    with local_server(None, "--keys", str(keys), *flags) as url, ExitStack() as clients:
        tenants = {key: Tenant(url, key) for key in (*TENANTS, "new")}
        for tenant in tenants.values():
            clients.enter_context(tenant.client)
        yield tenants


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    write_keys(path, TENANTS)
    return path


@pytest.fixture(scope="module")
def tenants(keys: Path) -> Iterator[dict[str, Tenant]]:
    with serving(keys, "--dtype", "float32") as found:
        yield found


def test_another_tenants_prompt_is_one_that_nobody_has_asked(tenants: dict[str, Tenant]) -> None:
    """PAIRED: a tenant's second key finds what its first one left."""
    a, b = tenants["a"], tenants["b"]
    first = a.signs(PROMPT)
    assert a.cached(PROMPT) > 300
    assert tenants["a2"].cached(PROMPT) > 300
    assert tenants["a2"].cached(PROMPT, cache_salt="s") == 0
    assert b.signs(PROMPT) == first
    assert b.signs(PROMPT)["usage"]["prompt_tokens_details"]["cached_tokens"] > 300


def test_what_one_tenant_drops_stays_with_the_other(tenants: dict[str, Tenant]) -> None:
    a, b = tenants["a"], tenants["b"]
    prompt = words(200, "dropped")
    for tenant in (a, b):
        tenant.ask(prompt)
    assert b.client.delete("/v1/cache").json()["dropped_tokens"] > 0
    assert a.cached(prompt) > 200
    assert b.cached(prompt) == 0


def test_a_key_that_changes_its_tenant_changes_what_it_finds(keys: Path, tenants: dict[str, Tenant]) -> None:
    prompt, c, new = words(200, "moved"), tenants["c"], tenants["new"]
    try:
        assert tenants["a"].cached(prompt) == 0
        assert c.cached(prompt) == 0
        write_keys(keys, TENANTS | {"c": "team-b", "new": "team-a"})
        wait_for(new, 200)
        assert new.cached(prompt) > 200
        assert c.cached(prompt) == 0
        assert tenants["b"].cached(prompt) > 200
        write_keys(keys, {key: tenant for key, tenant in TENANTS.items() if key != "a2"})
        wait_for(new, 401)
        assert tenants["a2"].client.post("/v1/completions", json={"prompt": prompt}).status_code == 401
        assert c.cached(prompt) > 200
    finally:
        write_keys(keys, TENANTS)


def wait_for(tenant: Tenant, status: int) -> None:
    deadline = time.monotonic() + 30
    while tenant.client.get("/v1/models").status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nothing_is_known_after_a_restart_but_what_was_asked_since(keys: Path) -> None:
    for _ in range(2):
        with serving(keys, "--dtype", "float32") as tenants:
            assert [tenants[key].cached(PROMPT) > 0 for key in ("a", "b", "a2", "b", "c")] == [0, 0, 1, 1, 0]


def test_in_little_memory_under_eviction_and_preemption(keys: Path) -> None:
    """Both ask the same, at once and for long, so that each takes the other's memory, over and over."""
    prompts = [words(60, f"long-{i}") for i in range(3)]
    with serving(keys, *SMALL) as tenants, ThreadPoolExecutor(16) as threads:
        a, b = tenants["a"], tenants["b"]
        alone = {prompt: a.ask(prompt, max_tokens=300, ignore_eos=True)["choices"][0]["text"] for prompt in prompts}
        b.client.delete("/v1/cache")
        for turn in range(3):
            asked = [(tenant, prompt) for prompt in prompts for tenant in (a, b)]
            found = list(threads.map(lambda each: each[0].ask(each[1], max_tokens=300, ignore_eos=True), asked))
            for (tenant, prompt), answer in zip(asked, found, strict=True):
                assert answer["choices"][0]["text"] == alone[prompt]
                if tenant is b and not turn:
                    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        for i in range(8):
            a.ask(words(150, f"other-{i}"))
            assert b.cached(words(150, f"other-{i}")) == 0
        assert figure(a.client, "plait_preemptions_total") > 0
        assert figure(a.client, "plait_evictions_total") > 0
