"""Files that a part of the configuration refers to, and whether they have changed since they were read."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from ingest.redaction import Redactor

Signature = tuple[int, int, int] | None  # what changes with a file, and with what a link leads to; None: no such file


class Files:
    def __init__(self, paths: Collection[Path]) -> None:
        self._seen: Mapping[Path, Signature] = {path: _signature(path) for path in paths}

    def __bool__(self) -> bool:
        return bool(self._seen)

    def changed(self) -> bool:
        """Whether any has changed since the last time that this said so. Costs some microseconds a file."""
        now = {path: _signature(path) for path in self._seen}
        changed, self._seen = now != self._seen, now
        return changed


class Renewals(Redactor):
    """Takes the secrets of a part that is resolved again, in the places of those that they replace."""

    def __init__(self, redactor: Redactor, slot: str, turn: int) -> None:
        """`turn`: those of the turn before the last one are forgotten; the last ones may still be shown."""
        super().__init__()
        self._redactor, self._slot, self._turn, self._count = redactor, slot, turn, 0

    def add(self, secret: str) -> None:
        for line in {secret, *secret.splitlines()}:
            self._count += 1
            self._redactor.renew(f"{self._slot} {self._count} {self._turn % 2}", line)


def _signature(path: Path) -> Signature:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
