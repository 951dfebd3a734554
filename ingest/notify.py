"""Tells a person of dead jobs and failed streams, once for each incident.

look for trouble → begin incidents → tell → write down that it was told. Each step may be the last before a crash: what
is dead is in the database, and so is what was told; who dies in the middle of telling is followed by another after
TELLING seconds, who tells it again. Messages pass through the transport of all requests, with its limits and redaction.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from checkpoints.jobs.gist import gist
from checkpoints.jobs.incidents import AT_ONCE, Due, Incident, Incidents, Trouble
from ingest import metrics
from ingest.config.model import Retry, Timeout
from ingest.config.notify import Notify
from ingest.config.references import Where, nowhere, resolve
from ingest.errors import ConfigError, IngestError
from ingest.redaction import Redactor
from ingest.report import Outcome, Report
from ingest.retry import backoff
from ingest.sources import Notice
from ingest.sources.auth.static import Static
from ingest.sources.clients import Clients
from ingest.sources.exchange import Exchange
from ingest.sources.hosts import Hosts
from ingest.sources.request import Request
from ingest.sources.transport import Limits, Transport

log = structlog.get_logger()

EVERY = 5.0  # seconds between two looks
TELLING = 120.0  # seconds after which another may tell what somebody began to tell
PUT_OFF, PUT_OFF_CAP = 10.0, 900.0  # seconds until what could not be told is tried again
LIMITS = Limits(
    Timeout.model_validate({"connect": "5s", "read": "10s", "total": "20s"}),
    Retry.model_validate({"attempts": 3, "base": "1s", "cap": "10s", "budget": "1m", "max_wait": "1m"}),
    max_body=100_000,
)
SINGLY = 5  # incidents of one moment that have a message each; more have one together
SHOWN = 500  # characters of an error
SYNC = "sync"  # the kind of jobs that run a stream
JSON = {"content-type": "application/json"}


@dataclass
class Failing:
    """Streams that run without jobs: `changed` is told of their reports, and keeps what is not in the database yet."""

    found: dict[str, str | None] = field(default_factory=dict)  # subject → why it failed; None: it was complete
    known: dict[str, bool] = field(default_factory=dict)  # subject → whether it failed last

    def changed(self, report: Report) -> None:
        failed = report.outcome is Outcome.FAILED
        if failed or report.outcome is Outcome.COMPLETE:
            subject = str(report.stream)
            if self.known.get(subject) is not failed:
                self.known[subject] = failed
                self.found[subject] = report.reason if failed else None


def of_job(trouble: Trouble, on: Sequence[str]) -> Incident:
    event = "stream.failed" if trouble.kind == SYNC and "stream.failed" in on else "job.dead"
    what = trouble.schedule if trouble.schedule and trouble.kind == SYNC else f"{trouble.kind} of {trouble.source}"
    why = {"permanent": "trying again cannot help", "exhausted": f"after {trouble.attempts} attempts"}
    before = f", as {trouble.deaths} before it" if trouble.deaths else ""
    message = (
        f"{what} failed: job {trouble.id} is dead ({why.get(trouble.dead_reason or '', trouble.dead_reason)}{before}):"
        f" {_short(gist(trouble.last_error_class, trouble.last_error))}\n`ingest jobs show {trouble.id}`"
    )
    return Incident(trouble.subject, event, message, trouble.id)


def of_stream(subject: str, reason: str) -> Incident:
    return Incident(subject, "stream.failed", f"{subject} failed: {_short(reason)}")


def together(due: Sequence[Due]) -> str:
    """What is said of one incident, or of so many that nobody would read a message for each."""
    if len(due) == 1:
        return due[0].message
    firsts = [one.message.split("\n", 1)[0] for one in due[:SINGLY]]
    more = f"and {len(due) - SINGLY:,} more: `ingest jobs list --state dead`"
    return "\n".join([f"{len(due):,} incidents", *firsts, more])


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


@dataclass(frozen=True)
class Notifier:
    """`post` sends one message, or raises IngestError."""

    incidents: Incidents
    post: Callable[[str], Awaitable[None]]
    on: Sequence[str]
    scrub: Callable[[str], str]
    failing: Failing = field(default_factory=Failing)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and once more then."""
        away = False
        while True:
            stopped = stop.is_set()
            try:
                await self.look()
                away = False
            except IngestError as exc:  # what a person must mend here ends nothing else
                if not away:
                    log.warning("cannot look for what to tell yet", error=str(exc))
                away = True
            if stopped:
                return
            await _stopped(stop, EVERY)

    async def look(self) -> None:
        """One look: what is trouble has an incident afterwards, and what is due was told or put off."""
        kind = None if "job.dead" in self.on else SYNC
        while True:
            found = await self.incidents.survey(kind)
            await self._begin([of_job(trouble, self.on) for trouble in found])
            if len(found) < AT_ONCE:
                break
        if "stream.failed" in self.on:
            await self._streams()
        due = await self.incidents.take(TELLING)
        for some in [due] if len(due) > SINGLY else [[one] for one in due]:
            await self._tell(some)

    async def _streams(self) -> None:
        for subject, reason in list(self.failing.found.items()):
            if reason is None:
                await self.incidents.end(subject)
            else:
                await self._begin([of_stream(subject, reason)])
            if self.failing.found.get(subject) == reason:
                del self.failing.found[subject]

    async def _begin(self, incidents: Sequence[Incident]) -> None:
        if incidents:
            await self.incidents.begin([one._replace(message=self.scrub(one.message)) for one in incidents])

    async def _tell(self, due: Sequence[Due]) -> None:
        """In one message."""
        subjects = [one.subject for one in due]
        shown = ", ".join(subjects[:SINGLY])
        try:
            await self.post(together(due))
        except IngestError as exc:
            delay = PUT_OFF + backoff(max(one.tries for one in due), PUT_OFF, PUT_OFF_CAP)
            metrics.told.labels(due[0].event, "failed").inc()
            log.warning("cannot tell anybody yet", about=shown, number=len(due), seconds=round(delay), error=str(exc))
            await self.incidents.put_off(subjects, delay)
            return
        metrics.told.labels(due[0].event, "told").inc()
        log.info("told", about=shown, number=len(due))
        await self.incidents.told(subjects)


class _Unwatched:
    """Messages are no part of a run: there is nobody to be told how they go."""

    def requested(self, seconds: float) -> None:
        pass

    def retrying(self, attempt: int, delay: float, reason: str) -> None:
        log.debug("the message is sent again", attempt=attempt, delay=round(delay, 1), reason=reason)

    def waiting(self, delay: float, reason: str) -> None:
        pass

    def noticed(self, notice: Notice) -> None:
        pass

    def restarted(self, reason: str) -> None:
        pass


@asynccontextmanager
async def open_post(
    notify: Notify, redactor: Redactor, where: Where = nowhere
) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Sends one message. Raises ConfigError where the URL cannot be had, or is none."""
    url = resolve(notify, redactor, where).url
    try:
        hosts = Hosts(url)
    except ValueError as exc:
        raise ConfigError(f"{where('url')}: {exc} (after its references were resolved)") from exc
    clients = Clients(None, hosts)
    transport = Transport(Exchange(clients.of, hosts, redactor), redactor)
    nobody = Static({}, {}, ())

    async def post(message: str) -> None:
        body = json.dumps({"text": f"ingest on {socket.gethostname()}: {redactor.scrub(message)}"}).encode()
        await transport.send(Request(url, "POST", JSON, body), nobody, LIMITS, _Unwatched(), lambda _: None)

    try:
        yield post
    finally:
        await clients.aclose()


async def _stopped(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
