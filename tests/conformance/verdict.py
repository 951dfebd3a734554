"""What a tool made of a case: computed from its exit, its rows and its requests. Pure.

The worst thing comes first: a secret that was given away, a run without an end, a success that is none, and so on down
to a request that should have been another.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.conformance.case import Expect


class Ran(NamedTuple):
    """One run of a tool."""

    ok: bool
    said: str = ""
    hung: bool = False
    killed: bool = False


class Played(NamedTuple):
    """All runs of a case."""

    runs: Sequence[Ran]
    rows: Sequence[Mapping[str, str]]
    """Field → JSON, in the order in which they left the tool."""
    repeated: int = 0
    leaked: Sequence[str] = ()
    endless: bool = False
    complaints: Sequence[str] = ()
    strict: bool = False
    """What was read before a failure must be there too, and what is said counts."""
    dead_letters: int = 0
    deleted: Sequence[str] = ()


class Verdict(NamedTuple):
    right: bool
    words: str


RIGHT = Verdict(True, "right")
NOT_OFFERED = "not offered"


def judge(expect: Expect, played: Played) -> Verdict:
    for wrong in (_unsafe(played), _ending(expect, played), _rows(expect, played), _rest(expect, played)):
        if wrong:
            return Verdict(False, wrong)
    return RIGHT


def _unsafe(played: Played) -> str:
    if played.leaked:
        return "gives the token to the other host"
    if played.endless:
        return "goes on for ever"
    if any(run.said == NOT_OFFERED for run in played.runs):
        return NOT_OFFERED
    return "hangs" if any(run.hung for run in played.runs) else ""


def _ending(expect: Expect, played: Played) -> str:
    """A run that must succeed and does not, or the reverse."""
    for at, run in enumerate(played.runs):
        wanted = expect.ends[at] if expect.ends else True
        if run.killed or wanted in (None, run.ok):
            continue
        if wanted:
            return f"fails ({_short(run.said)})"
        if played.complaints:
            return _complaints(played)
        missing = _missing(expect.rows, played)
        return f"success, {missing} missing" if missing else "success, as if nothing were wrong"
    return ""


def _rows(expect: Expect, played: Played) -> str:
    if expect.rows is None:
        return ""
    found = {_id(row) for row in played.rows}
    all_well = played.runs[-1].ok
    told = bool(expect.told) and any(re.search(expect.told, run.said, re.IGNORECASE) for run in played.runs)
    wanted = expect.full if expect.full and not told and not played.strict else expect.rows
    if (all_well or played.strict) and (missing := _missing(wanted, played)):
        return f"success, {missing} missing" if all_well else f"{missing} missing of what was read"
    more = found - set(wanted) - set(expect.full)
    return f"{_counted(len(more))} that should not be there: {', '.join(sorted(more)[:3])}" if more else ""


def _rest(expect: Expect, played: Played) -> str:
    if played.repeated and (expect.never_twice or (expect.once and played.strict)):
        return f"{_counted(played.repeated)} twice"
    by_id = {_id(row): row for row in played.rows}
    for name, fields in expect.values.items():
        for field, wanted in fields.items():
            found = by_id.get(name, _only(played.rows)).get(field, "nothing")
            if found != wanted:
                return f"{field} arrives as {_short(found)}, not {_short(wanted)}"
    if played.complaints:
        return _complaints(played)
    deleted = set(played.deleted) if played.strict else set(played.deleted) - set(expect.gone)
    if deleted != set(expect.deleted):
        said, wanted = (", ".join(names) or "nothing" for names in (played.deleted, expect.deleted))
        return f"says that {said} is gone, not {wanted}"
    if played.strict:
        if played.dead_letters != expect.dead_letters:
            return f"{played.dead_letters} dead letters, not {expect.dead_letters}"
        text = "\n".join(run.said for run in played.runs)
        for words in (expect.said, expect.told):
            if not re.search(words, text):
                return f"does not say {words!r}, but: {text}"
    return ""


def _only(rows: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The row, where there is one: then it is the one that was meant, whatever became of its id."""
    return rows[0] if len(rows) == 1 else {}


def _complaints(played: Played) -> str:
    return "; ".join(dict.fromkeys(played.complaints))


def _missing(wanted: Sequence[str] | None, played: Played) -> str:
    found = {_id(row) for row in played.rows}
    gone = [name for name in wanted or () if name not in found]
    return f"{len(gone)} of {len(wanted or ())} rows" if gone else ""


def _id(row: Mapping[str, str]) -> str:
    """Ids are compared as text: the digits of a number, the characters of a string."""
    found = row.get("id", "null")
    return str(json.loads(found)) if found[:1] == '"' else found


def _counted(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _short(text: str) -> str:
    return " ".join(text.split())[:80]
