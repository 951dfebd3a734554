"""Runs `ingest` as its own process, with an environment that holds nothing of the caller's configuration."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT = 300.0  # seconds


class Engine(NamedTuple):
    """The three addresses, as a user sets them. Empty: the embedded default."""

    name: str
    environment: dict[str, str]


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Ingest:
    """`folder`: the working directory, where ingest.yaml is."""

    def __init__(self, folder: Path, engine: Engine, **environment: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("INGEST_")}
        self.environment = {**kept, **engine.environment, **environment}

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ingest.cli", *arguments,
            cwd=self.folder, env=self.environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def __call__(self, *arguments: str, code: int | None = 0) -> Done:
        """Run to the end; `code`: the exit code that is expected, None: any."""
        process = await self.start(*arguments)
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
        done = Done(process.returncode or 0, out.decode(), err.decode())
        assert code is None or done.code == code, (
            f"ingest {' '.join(arguments)}: exit {done.code}\n{done.out}\n{done.err}"
        )
        return done
