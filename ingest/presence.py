"""Tells whether another process is still there, by an flock on a file of its own.

The kernel drops the lock however the process ends, and keeps it while the process is merely stopped. A process number
would not do: it is given away again, and means nothing in another container.
"""

import fcntl
import os
from pathlib import Path
from urllib.parse import quote


class Presence:
    """Names that this process answers for, until `close` or its end. Every name has a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shown: dict[str, int] = {}  # name → file descriptor

    def show(self, name: str) -> None:
        """From here on others find `name` present. The lock is shared: one process may show a name twice."""
        if name in self._shown:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(name)
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(file, fcntl.LOCK_SH)  # waits for no longer than `gone` takes
            if _is_at(file, path):
                self._shown[name] = file
                return
            os.close(file)

    def gone(self, name: str) -> bool:
        """No process shows `name` any more. What a killed process left behind is removed."""
        path = self._path(name)
        while True:
            try:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return True
            try:
                if not _locked_alone(file):
                    return False
                if _is_at(file, path):
                    path.unlink()
                    return True
            finally:
                os.close(file)

    def close(self) -> None:
        for name, file in self._shown.items():
            if _locked_alone(file) and _is_at(file, self._path(name)):
                self._path(name).unlink()
            os.close(file)
        self._shown.clear()

    def _path(self, name: str) -> Path:
        return self._folder / quote(name, safe="")


def _locked_alone(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`: it may have been removed between opening and locking it."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
