"""``plait key``: a new key, and what the file of keys has to say of it."""

import yaml

from plait_server.auth.keys import digest_of, new_secret, parse


def make_key(name: str, tenant: str) -> tuple[str, str]:
    """The entry as YAML, ready to be appended to the file, and the key. Raises ``ValueError`` for a bad name."""
    secret = new_secret()
    entry = {"name": name, "tenant": tenant, "sha256": digest_of(secret).hex()}
    parse(entry)
    return yaml.safe_dump([entry], sort_keys=False), secret
