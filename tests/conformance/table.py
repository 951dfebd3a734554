"""The comparison as docs/conformance.md shows it, between two markers.

What was measured today stays when only some of it is measured again.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from tests.conformance.case import Case
from tests.conformance.verdict import Verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
BEGIN, END = "<!-- measured by `make conformance` -->", "<!-- end -->"
RIGHT, NO_QUESTION = "right", "–"

Cells = Mapping[str, Mapping[str, str]]
"""Case → tool → what the cell says."""


def markdown(groups: Mapping[str, Sequence[Case]], versions: Mapping[str, str], cells: Cells, day: date) -> str:
    """`versions`: tool → version. What no cell says is not there."""
    named = {tool: f"{tool} {version}".strip() for tool, version in versions.items()}
    shown = {title: [case for case in cases if case.ids in cells] for title, cases in groups.items()}
    counts = [_count(name, [cells[case.ids][tool] for cases in shown.values() for case in cases])
              for tool, name in named.items()]  # fmt: skip
    lines = [f"Measured on {day:%Y-%m-%d}. Right are: {', '.join(counts)}."]
    for title, cases in shown.items():
        if cases:
            lines += ["", f"### {title}", "", f"| | the API … | what must happen | {' | '.join(named.values())} |"]
            lines.append(f"| --- | --- | --- |{' --- |' * len(named)}")
            lines += [line(case, [cells[case.ids][tool] for tool in named]) for case in cases]
    return "\n".join(lines) + "\n"


def cell(verdict: Verdict | None) -> str:
    """None: the question does not arise for the tool."""
    if verdict is None:
        return NO_QUESTION
    return RIGHT if verdict.right else f"**{_plain(verdict.words)}**"


def line(case: Case, cells: Sequence[str]) -> str:
    return f"| {case.ids} | {_plain(case.does)} | {_plain(case.must)} | {' | '.join(cells)} |"


def measured(versions: Mapping[str, str], day: date) -> dict[str, dict[str, str]]:
    """The cells of the page, where it is of this day and of these versions."""
    text = PAGE.read_text()
    heads = " | ".join(f"{tool} {version}".strip() for tool, version in versions.items())
    if f"Measured on {day:%Y-%m-%d}" not in text or f" | {heads} |" not in text:
        return {}
    rows = [re.split(r" (?<!\\)\| ", row[2:-2]) for row in text.splitlines() if row.startswith("| ")]
    return {row[0]: dict(zip(versions, row[3:], strict=True)) for row in rows if len(row) == 3 + len(versions)}


def write(text: str) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")


def _count(name: str, found: Sequence[str]) -> str:
    asked = [one for one in found if one != NO_QUESTION]
    return f"{name} {asked.count(RIGHT)} of {len(asked)}"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
