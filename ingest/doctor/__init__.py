"""What may be wrong around us, looked at one thing at a time, with what to do about each."""

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    GOOD = "good"
    NOTE = "note"  # worth knowing; nothing has to be done today
    ACT = "act"  # a person must do something


class Finding(NamedTuple):
    about: str  # what was looked at
    level: Level
    said: str
    todo: str = ""


def good(about: str, said: str) -> Finding:
    return Finding(about, Level.GOOD, said)


def note(about: str, said: str, todo: str = "") -> Finding:
    return Finding(about, Level.NOTE, said, todo)


def act(about: str, said: str, todo: str) -> Finding:
    return Finding(about, Level.ACT, said, todo)
