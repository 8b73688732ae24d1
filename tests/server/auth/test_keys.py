"""The file of keys: what it may say, finding a key, and taking over changes."""

import hashlib
import os
from hmac import compare_digest
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from plait_server.auth import keys as keys_module
from plait_server.auth.keys import Key, KeyFileError, KeyStore, digest_of, find, read_keys
from plait_server.cli.new_key import make_key


def entry(secret: str, name: str = "a", tenant: str = "t", **more: object) -> dict[str, object]:
    return {"name": name, "tenant": tenant, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **more}


def write(path: Path, *entries: object) -> Path:
    """Under another inode, as editors and Kubernetes do it."""
    draft = path.with_suffix(".new")
    draft.write_text(yaml.safe_dump(list(entries)))
    return draft.replace(path)


def test_a_key_is_found_by_its_hash(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.yaml", entry("one", "a"), entry("two", "b", requests_per_minute=5, queue_share=0.5))
    keys = read_keys(file)
    two = find(keys, "two")
    assert two is not None
    assert (two.name, two.tenant, two.limits.requests_per_minute, two.limits.queue_share) == ("b", "t", 5, 0.5)
    assert find(keys, "three") is None
    assert find(keys, "") is None


def test_every_hash_is_compared_in_constant_time_whichever_matches() -> None:
    keys = [Key(name=name, tenant="t", digest=digest_of(name)) for name in ("a", "b", "c", "d")]
    compared = []
    for secret in ("a", "d", "nobody's"):
        with patch.object(keys_module, "compare_digest", wraps=compare_digest) as compare:
            find(keys, secret)
        compared.append(compare.call_count)
    assert compared == [4, 4, 4]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (entry("x", color="red"), "color"),
        (entry("x", name=""), "name must be"),
        (entry("x", tenant="a\0b"), "tenant must be"),
        (entry("x") | {"sha256": "x" * 64}, "sha256 must be"),
        (entry("x", requests_per_minute=0), "requests_per_minute"),
        (entry("x", requests_per_minute=True), "requests_per_minute"),
        (entry("x", tokens_per_minute="9"), "tokens_per_minute"),
        (entry("x", max_tokens=-1), "max_tokens"),
        (entry("x", queue_share=1.5), "queue_share"),
        (entry("x", disabled="no"), "disabled"),
        ("sk-plait-whole-key", "must have name"),
    ],
)
def test_a_wrong_entry_is_named_with_what_to_mend(tmp_path: Path, wrong: object, says: str) -> None:
    file = write(tmp_path / "keys.yaml", entry("first", "first"), wrong)
    with pytest.raises(KeyFileError, match=f"entry 2: .*{says}"):
        read_keys(file)


def test_messages_do_not_repeat_a_key_that_stands_where_its_hash_belongs(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.yaml", entry("x") | {"sha256": "sk-plait-secret"})
    with pytest.raises(KeyFileError) as raised:
        read_keys(file)
    assert "sk-plait-secret" not in str(raised.value)


def test_where_a_file_stops_being_yaml_is_told_and_not_what_stands_there(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("- name: x\n  sha256: *sk-plait-secret\n")
    with pytest.raises(KeyFileError, match=r"not valid YAML: look at line 2") as raised:
        read_keys(tmp_path / "keys.yaml")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("content", ["{", "just text", "keys: 3", "\x00"])
def test_a_file_that_is_no_list_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys.yaml").write_text(content)
    with pytest.raises(KeyFileError):
        read_keys(tmp_path / "keys.yaml")


def test_names_and_hashes_are_unique(tmp_path: Path) -> None:
    for entries in ((entry("x"), entry("y")), (entry("x", "a"), entry("x", "b"))):
        with pytest.raises(KeyFileError, match="same"):
            read_keys(write(tmp_path / "keys.yaml", *entries))


def test_a_store_without_its_file_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read"):
        KeyStore(tmp_path / "nowhere.yaml")


def test_a_changed_file_is_taken_over_and_keys_of_a_tenant_overlap(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.yaml", entry("old", "k1"))
    store = KeyStore(file)
    write(file, entry("old", "k1"), entry("new", "k2"))
    store.reload()
    assert {key.tenant for key in store.keys} == {"t"}
    assert store.find("old")
    assert store.find("new")
    write(file, entry("new", "k2"))
    store.reload()
    assert store.find("old") is None
    assert store.find("new")


def test_a_file_changed_for_the_worse_changes_nothing_and_is_looked_at_again(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.yaml", entry("old"))
    store = KeyStore(file)
    for wrong in ("[", "", None):
        file.unlink() if wrong is None else file.write_text(wrong)
        if wrong == "":
            continue  # an empty file is no keys; only half-written ones are wrong
        store.reload()
        assert store.find("old")
    write(file, entry("new"))
    store.reload()
    assert store.find("new")
    assert store.find("old") is None


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.yaml", entry("x"))
    store = KeyStore(file)
    with patch.object(keys_module, "read_keys") as read:
        store.reload()
        read.assert_not_called()
        os.utime(file, ns=(1, 1))
        read.return_value = ()
        store.reload()
        read.assert_called_once()


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("")
    store = KeyStore(tmp_path / "keys.yaml")
    assert store.required
    assert store.keys == ()


def test_a_made_key_opens_what_its_entry_describes(tmp_path: Path) -> None:
    text, secret = make_key("laptop", "team-a")
    second, _ = make_key("phone", "team-a")
    (tmp_path / "keys.yaml").write_text(text + second)
    assert secret not in text
    key = find(read_keys(tmp_path / "keys.yaml"), secret)
    assert key is not None
    assert key.name == "laptop"


def test_a_key_with_a_bad_name_is_not_made() -> None:
    with pytest.raises(ValueError, match="name must be"):
        make_key("with space", "t")
