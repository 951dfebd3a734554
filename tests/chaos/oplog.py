"""What was done to the processes and the servers: a line of JSON each, on disk before the next thing is done.

Kept beside the logs of the processes; whoever reads a failed run begins here.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class OperationLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)

    def write(self, what: str, **facts: Any) -> None:
        line = {"t": round(time.time(), 3), "what": what, **facts}
        self._file.write(json.dumps(line).encode() + b"\n")
        os.fsync(self._file.fileno())

    def read(self) -> Sequence[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def close(self) -> None:
        self._file.close()
