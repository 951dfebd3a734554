"""Shows results: a table of targets, a table of runs, and JSON with every single run."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.results import Results, Run
from tests.bench.targets import BESIDE_THE_FLOOR, TARGETS, faster, thriftier


def machine() -> str:
    """Processor, cores, memory, Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}, Python {platform.python_version()}"


def markdown(results: Results, records: int) -> str:
    """Both tables, with when and where they were made."""
    runs = [run for found in results.runs.values() for run in found]
    loads = [run.load for run in runs]
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; {records:,} records a run; "
        f"load average {min(loads, default=0):.1f} to {max(loads, default=0):.1f} while it ran.",
        "",
        "| target | must reach | aim | reached | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for target in TARGETS:
        value = target.value(results)
        sign = "≤ " if target.at_most else ""
        reached = _shown(value)
        wanted = f"{sign}{target.must:g} | {sign}{target.aim:g}"
        lines.append(f"| {target.name} | {wanted} | {reached} | {target.verdict(results)} |")
    lines += ["", "| beside the floor | records/s | CPU a record |", "| --- | --- | --- |"]
    for ours, floor in BESIDE_THE_FLOOR:
        rate, cpu = faster(ours, floor)(results), thriftier(floor, ours)(results)
        lines.append(f"| {ours} / {floor} | {_shown(rate)} | {_shown(cpu)} |")
    lines += [
        "",
        "| what | runs | records/s: median (min – max) | client CPU s/100k | peak RSS MB |",
        "| --- | --- | --- | --- | --- |",
        *(_row(name, found) for name, found in results.runs.items() if found),
        *(f"| {name} | {len(found)} | {_spread(found, '.0f')} ms | | |" for name, found in results.numbers.items()),
    ]
    lines += [f"| {name} | 0 | not run: {_short(why)} | | |" for name, why in results.not_run.items()]
    return "\n".join(lines) + "\n"


def as_json(results: Results, records: int) -> str:
    return json.dumps(
        {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "records": records,
            "targets": [
                {
                    "name": target.name,
                    "must": target.must,
                    "aim": target.aim,
                    "at_most": target.at_most,
                    "reached": target.value(results),
                    "verdict": target.verdict(results),
                }
                for target in TARGETS
            ],
            "runs": {name: [run._asdict() for run in found] for name, found in results.runs.items()},
            "latencies_ms": results.numbers,
            "not_run": results.not_run,
        },
        indent=2,
    )


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _row(name: str, runs: list[Run]) -> str:
    rates = _spread([run.rate for run in runs], ",.0f")
    cpu = _spread([run.cpu_100k for run in runs], ".2f")
    return f"| {name} | {len(runs)} | {rates} | {cpu} | {_shown(max(run.peak for run in runs) or None)} |"


def _spread(values: list[float], form: str) -> str:
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return f"{middle:{form}} ({ordered[0]:{form}} – {ordered[-1]:{form}})"


def _short(why: str) -> str:
    return why.splitlines()[0][:120] if why else ""
