"""Where a start puts what it finds: in force at once, and in a file of the user's cache folder for later starts."""

import logging
from collections.abc import Iterable

from plait_kernels.tuning import Ask, Config, found_path, key_name, learn, read_table, store

log = logging.getLogger("plait.tuning")


class Shelf:
    """Of one GPU. A folder that cannot be written is told of once; what is found is in force all the same."""

    def __init__(self, slug: str) -> None:
        self.slug, self.path = slug, found_path(slug)
        self._writable = True

    def count(self, asked: Iterable[Ask]) -> int:
        """How many of these the file holds."""
        table = read_table(self.path)
        return sum(key_name(key) in table.get(kernel, {}) for kernel, key in asked)

    def put(self, ask: Ask, config: Config) -> None:
        kernel, key = ask
        learn(self.slug, kernel, key, config)
        if not self._writable:
            return
        try:
            store(self.path, self.slug, {kernel: {key_name(key): config}}, "found at a start")
        except OSError as error:
            self._writable = False
            log.warning("what tuning finds is not kept, the next start tries again: %s", error)
