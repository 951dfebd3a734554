"""Jobs as tables and as JSON: what `ingest jobs` prints."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checkpoints.jobs import State
from checkpoints.jobs.desk import Attempt, Listed, Row, Ruling, Shown, SourceSummary, Summary
from checkpoints.jobs.gist import gist
from ingest.cli import show
from ingest.cli.moments import clock, iso, moment, plain, relative, span
from ingest.cli.table import Spare
from ingest.telltale import masked

LINE = 80  # characters of an error in a table
SAID = 20  # rulings that are printed one by one
SUMMARY = Spare(
    ("next", "oldest ready", "takes", "failed 1h", "done 1h", "expired", "retrying", "scheduled"),
    ("next", "takes", "done 1h", "failed 1h"),
)
LISTED = Spare(("progress", "worker"), ("progress", "worker", "attempts"))

Scrub = Callable[[str], str]


def summary(found: Summary, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"now": iso(found.now), "sources": [_numbers(one, found.now) for one in found.sources]}))
        return
    columns = (
        "source", "ready", "scheduled", "retrying", "running", "expired", "dead", "oldest ready", "next", "done 1h",
        "failed 1h", "takes", "paused",
    )  # fmt: skip
    rows = [_summary(one, found.now) for one in found.sources]
    if len(rows) > 1:
        rows.append(_total(found.sources))
    show.rows(columns, rows, SUMMARY)
    print(clock(found.now))


def _numbers(one: SourceSummary, now: float) -> dict[str, Any]:
    age = None if one.oldest_ready_at is None else round(now - one.oldest_ready_at, 3)
    return {**plain(one), "oldest_ready_seconds": age}


def _summary(one: SourceSummary, now: float) -> list[str]:
    attempts = one.done_1h + one.failed_1h
    limit = "" if one.limit is None else f"/{one.limit}"
    return [
        one.source, *_counts(one, limit),
        "" if one.oldest_ready_at is None else span(now - one.oldest_ready_at),
        "" if one.next_at is None else relative(one.next_at, now),
        f"{one.done_1h:,}", _failed(one.failed_1h, attempts), span(one.seconds_1h / attempts) if attempts else "",
        f"{moment(one.paused_until, now)} {one.pause_note or ''}".strip(),
    ]  # fmt: skip


def _counts(one: SourceSummary, limit: str = "") -> list[str]:
    numbers = (one.ready, one.scheduled, one.retrying, one.running, one.expired, one.dead)
    ready, scheduled, retrying, running, expired, dead = (f"{number:,}" for number in numbers)
    return [ready, scheduled, retrying, running + limit, expired, dead]


def _failed(failed: int, attempts: int) -> str:
    return f"{failed:,} ({failed / attempts:.0%})" if failed else "0"


def _total(sources: Sequence[SourceSummary]) -> list[str]:
    columns = zip(*((s.ready, s.scheduled, s.retrying, s.running, s.expired, s.dead) for s in sources), strict=True)
    done, failed = sum(s.done_1h for s in sources), sum(s.failed_1h for s in sources)
    return ["all", *(f"{sum(c):,}" for c in columns), "", "", f"{done:,}", _failed(failed, done + failed), "", ""]


def listed(found: Listed, *, as_json: bool, indent: int | None, scrub: Scrub) -> None:
    if as_json:
        print(json.dumps([fields(row, scrub) for row in found.rows], indent=indent))
        return
    columns = ("id", "kind", "source", "state", "attempts", "run at", "worker", "progress", "last error")
    show.rows(columns, [_row(row, found.now, scrub) for row in found.rows], LISTED)
    print(clock(found.now))


def fields(row: Row, scrub: Scrub) -> dict[str, Any]:
    """As documented in docs/jobs.md."""
    error = None if row.last_error is None else scrub(row.last_error)
    return {**plain(row), "last_error": error, "progress": _parsed(row.progress)}


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(masked(text))


def state(row: Row, now: float) -> str:
    """In a word, and what there is to know about it."""
    if row.state is State.PENDING and row.run_at > now:
        return "retrying" if row.attempts else "scheduled"
    if row.state is State.PENDING:
        return "ready"
    if row.state is State.RUNNING:
        ending = ", to be cancelled" if row.cancel_requested else ""
        return "running, expired" if row.lease_until is not None and row.lease_until < now else f"running{ending}"
    return f"dead: {row.dead_reason}" if row.state is State.DEAD and row.dead_reason else str(row.state)


def _row(row: Row, now: float, scrub: Scrub) -> list[str]:
    at = row.finished_at if row.finished_at is not None else row.run_at
    lease = "" if row.lease_until is None else f" ({span(max(0.0, row.lease_until - now))} left)"
    error = _short(scrub(gist(row.last_error_class, row.last_error)))
    return [
        str(row.id), row.kind, row.source, state(row, now), f"{row.attempts}/{row.max_attempts}", moment(at, now),
        f"{row.worker or ''}{lease}", scrub(row.progress or ""), error,
    ]  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= LINE else text[: LINE - 1] + "…"


def shown(found: Shown, *, as_json: bool, errors: bool, scrub: Scrub) -> None:
    row, now = found.row, found.now
    if as_json:
        attempts = [{**plain(one), "error": None if one.error is None else scrub(one.error)} for one in found.attempts]
        job = {**fields(row, scrub), "payload": _parsed(found.payload), "history": attempts}
        print(scrub(json.dumps(job, indent=2)))
        return
    for name, value in _header(found, scrub):
        print(f"{name + ':':12} {value}")
    print()
    columns = ("#", "fence", "worker", "started", "took", "outcome", "error")
    show.rows(columns, [_attempt(one, now, scrub) for one in found.attempts])
    if errors:
        for one in found.attempts:
            if one.error is not None:
                print(f"\nattempt {one.attempt} (fence {one.fence}), {one.error_class}:\n{scrub(one.error)}")
    print(clock(now))


def _header(found: Shown, scrub: Scrub) -> Iterator[tuple[str, str]]:
    row, now = found.row, found.now
    yield "job", f"{row.id}, {row.kind} of {row.source}, queue {row.queue}, priority {row.priority}"
    yield "state", state(row, now)
    yield "attempts", f"{row.attempts} of {row.max_attempts}; {row.rescues} rescues, {row.releases} releases"
    yield "created", moment(row.created_at, now)
    yield ("finished", moment(row.finished_at, now)) if row.finished_at else ("run at", moment(row.run_at, now))
    if row.worker:
        yield "worker", f"{row.worker}, claimed {moment(row.claimed_at, now)}, until {moment(row.lease_until, now)}"
    if row.schedule:
        yield "schedule", f"{row.schedule}, tick of {moment(row.tick_at, now)}" if row.tick_at else row.schedule
    if row.deaths:
        yield "deaths", f"{row.deaths} earlier jobs of its schedule died of it too"
    if row.dedupe_key:
        yield "dedupe key", scrub(row.dedupe_key)
    if row.progress:
        yield "progress", scrub(json.dumps(_parsed(row.progress)))
    if row.note:
        yield "note", row.note
    yield "payload", scrub(json.dumps(_parsed(found.payload)))
    if row.last_error:
        yield "last error", _short(scrub(gist(row.last_error_class, row.last_error)))


def _attempt(one: Attempt, now: float, scrub: Scrub) -> list[str]:
    took = span((one.ended_at or now) - one.started_at)
    error = _short(scrub(gist(one.error_class, one.error)))
    return [
        str(one.attempt), str(one.fence), one.worker, moment(one.started_at, now), took,
        one.outcome or "under way", error,
    ]  # fmt: skip


def rulings(found: Sequence[Ruling], *, as_json: bool, dry: bool) -> int:
    """Prints them, and returns the exit code: 1 where something was refused."""
    refused = [ruling for ruling in found if not ruling.done]
    if as_json:
        print(json.dumps([ruling._asdict() for ruling in found], indent=2))
        return 1 if refused else 0
    for ruling in [*refused, *(r for r in found if r.done)][:SAID]:
        print(f"job {ruling.id}: {'' if ruling.done else 'refused: '}{ruling.said}")
    if len(found) > 1:
        print(f"{len(found) - len(refused):,} of {len(found):,} jobs; {len(refused):,} refused")
    if dry:
        print("a dry run: nothing was changed")
    return 1 if refused else 0
