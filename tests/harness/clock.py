"""A wall clock of their own for processes of the tests, which can be stepped while they run: libfaketime.

Only the wall clock is another one. Monotonic time goes on as it does, as when an administrator or NTP sets the clock.
"""

import sys
from pathlib import Path

from tests.harness.processes import NotStarted

FOLDERS = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime", "/opt/homebrew/lib/faketime")
LIBRARY = "libfaketimeMT.so.1"


def library() -> Path:
    """Raises NotStarted when libfaketime is not installed."""
    for folder in FOLDERS:
        for found in sorted(Path("/").glob(f"{folder[1:]}/{LIBRARY}")):
            return found
    raise NotStarted("libfaketime is not installed: install the package `faketime`")


def ingest(*words: str) -> list[str]:
    """The command that is `ingest WORDS` under such a clock."""
    return python("from ingest.cli import main; main()", *words)


def python(text: str, *words: str) -> list[str]:
    """The command that runs these statements under such a clock. libfaketime (0.9.10) takes the monotonic time until
    which Python's `time.sleep` sleeps for a wall clock's, and refuses it: here it waits in another way."""
    return [sys.executable, "-c", f"import threading, time; time.sleep = threading.Event().wait; {text}", *words]


class Clock:
    """`file` is where the processes that have `environment` look, each time they ask what time it is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)
        self.environment = {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its name before 0.9.10
        }

    def step(self, seconds: int) -> None:
        """The clock is so much ahead of ours from now on; behind, where it is negative."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)
