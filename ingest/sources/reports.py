"""Reports that an API makes when it is asked to: create a job → poll until it is done → download what it made.

The job is part of the cursor, which is saved as soon as the job is created: a run that is cut off goes on with it, and
has no other made. What is downloaded is a listing as any other, as of the moment at which the job was created. Here the
requests are made; `ordering.py` says when.
"""

import re
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from ingest.config.model import Job as Config
from ingest.config.model import SinglePage, Source, Stream
from ingest.errors import SourceChanged, SourceRefused
from ingest.paths import JsonPath, Root, parse
from ingest.redaction import MASK, Redactor
from ingest.sources import Watch
from ingest.sources.answers import Answer, Undecodable, scalar
from ingest.sources.auth import Credentials
from ingest.sources.cursor import Job, Report
from ingest.sources.exchange import Response
from ingest.sources.filling import Values
from ingest.sources.formats import Formats, TooLarge
from ingest.sources.links import resolved
from ingest.sources.placement import Put
from ingest.sources.request import Request
from ingest.sources.rules import Rules
from ingest.sources.rules import Told as Answered
from ingest.sources.template import Template
from ingest.sources.times import MICROS, parse_rfc3339, stamp
from ingest.sources.transport import Limits, Transport
from ingest.telltale import masked

NOT_FOUND, ACCEPTED = 404, 202
FRESH = 60.0  # seconds for which an API may not know a job yet that it has just created
SIGNED = 24  # characters of a query, or of one value in it, that may be all that it takes to get a report
AT_ONCE = 64  # reports whose signatures are masked; those of several parents are downloaded side by side

_SIGNED = re.compile(rf"""(https?:[^\s"'<>?]*\?)[^\s"'<>]{{{SIGNED},}}""")


class Failed(Exception):
    """There will be no report. `final`: asking for another would not help."""

    def __init__(self, what: str, *, final: bool = False) -> None:
        super().__init__(what)
        self.final = final


class _Told(NamedTuple):
    response: Response
    answer: Answer | None

    def find(self, path: JsonPath) -> str | None:
        """None: nothing is there. Raises SourceChanged for what is no text."""
        if path.root is Root.HEADER:
            return self.response.headers.get(str(path.steps[0]).lower())
        try:
            return None if self.answer is None else scalar(self.answer.first(path.steps))
        except (TypeError, UnicodeDecodeError, Undecodable):
            raise SourceChanged(f"`{path}` is no text in the answer of {self.response.status}") from None


def downloaded(stream: Stream) -> Stream:
    """The stream as far as its download shapes requests."""
    if stream.job is None:
        return stream
    download = stream.job.download
    nothing = {"json_": None, "form": None, "graphql": None, "incremental": None}
    path = download.path if download.path is not None and download.url is None else "/"
    return stream.model_copy(update={"path": path, "params": download.params, "method": "GET", **nothing})


class Reports:
    """The jobs of one stream."""

    def __init__(
        self,
        source: Source,
        stream: Stream,
        transport: Transport,
        credentials: Credentials,
        limits: Limits,
        redactor: Redactor,
        where: str,
    ) -> None:
        assert stream.job is not None
        self._config: Config = stream.job
        self._transport, self._credentials = transport, credentials
        self._max_body = limits.max_body
        errors = source.errors if stream.errors is None else stream.errors
        self._limits = limits._replace(rules=Rules(errors, self._read))
        self._redactor = redactor
        self._slots = cycle(f"{where} download {n}" for n in range(AT_ONCE))
        self._formats = Formats(stream.model_copy(update={"format": "auto"}))
        alone = stream.model_copy(update={"paginate": SinglePage(), "job": None})
        self._create = Template(source, _created(alone, self._config), str)
        bare = downloaded(stream).model_copy(update={"paginate": SinglePage(), "format": "auto"})
        poll, download = self._config.poll, self._config.download
        self._poll = Template(source, bare.model_copy(update={"path": poll.path or "/", "params": poll.params}), str)
        shown = {"path": download.path or "/", "params": download.params}
        self._locate = Template(source, bare.model_copy(update=shown), str)
        names = {name for _, name in self._config.of_a_job()} - {"job.id"}
        self._wanted = {name: parse(name.removeprefix("job.")) for name in names}

    async def create(self, values: Values, puts: Sequence[Put], watch: Watch) -> Job:
        """Raises SourceRefused, SourceChanged and what `Transport.send` raises."""
        create, poll = self._config.create, self._config.poll
        told = await self._ask(self._create.request(values, puts), watch)
        id = None if create.id is None else told.find(create.id)
        if create.id is not None and not id:
            raise SourceChanged(f"{self._said(told)} without an id of the job at `job.create.id: {create.id}`")
        url = None if poll.url is None else told.find(poll.url)
        if poll.url is not None and not url:
            raise SourceChanged(f"{self._said(told)} without a URL of the job at `job.poll.url: {poll.url}`")
        response = told.response
        created, ordered = response.asked_at + response.skew, self._transport.clock.wall()
        url = None if url is None else resolved(response.request.url, url)
        return Job(id, stamp(int(created * MICROS)), stamp(int(ordered * MICROS)), url)

    async def wait(self, job: Job, values: Values, watch: Watch) -> Report:
        """Until it is done. Raises Failed, and as `create` does."""
        clock, poll = self._transport.clock, self._config.poll
        ordered = parse_rfc3339(job.ordered, None) / MICROS
        values = {**values, "job.id": job.id}
        request = self._poll.request(values, (), job.url)
        while True:
            try:
                told = await self._ask(request, watch)
            except SourceRefused as exc:
                if exc.status != NOT_FOUND or clock.wall() > ordered + FRESH:
                    raise
                await self._pause(f"{_named(job)} is not known yet", watch)
                continue
            said = self._status(told)
            if said in poll.empty and poll.status is not None:
                return Report(job, empty=True)
            if said in poll.failed and poll.status is not None:
                raise Failed(f"{_named(job)} ended as {said}: {self._said(told)}")
            if said in poll.done or (poll.status is None and told.response.status != ACCEPTED):
                return await self._located(job, told, values, watch)
            if clock.wall() + poll.every > ordered + poll.timeout:
                late = f"{_named(job)} is still {said} after `job.poll.timeout` ({poll.timeout:g} s)"
                raise Failed(late, final=True)
            await self._pause(f"{_named(job)} is {said}", watch)

    async def _pause(self, why: str, watch: Watch) -> None:
        watch.waiting(self._config.poll.every, why)
        await self._transport.clock.sleep(self._config.poll.every)

    def _status(self, told: _Told) -> str:
        path = self._config.poll.status
        if path is None:
            return f"answered with {told.response.status}"
        found = told.find(path)
        if found is None:
            raise SourceChanged(f"{self._said(told)} without a status at `job.poll.status: {path}`")
        return found

    async def _located(self, job: Job, told: _Told, values: Values, watch: Watch) -> Report:
        download = self._config.download
        fields = {name: text for name, path in self._wanted.items() if (text := told.find(path)) is not None}
        job = replace(job, values=fields)
        if download.path is not None and download.url is not None:
            told = await self._ask(self._locate.request({**values, **fields}), watch)
        if download.url is None:
            return Report(job)
        url = told.find(download.url)
        if not url:
            raise SourceChanged(f"{self._said(told)} without a URL at `job.download.url: {download.url}`")
        url = resolved(told.response.request.url, url)
        self._mask(url)
        return Report(job, url)

    def _mask(self, url: str) -> None:
        """What its query is signed with, as a whole and value by value: an answer may repeat either."""
        slot, query = next(self._slots), urlsplit(url).query
        for n, text in enumerate([query, *(pair.partition("=")[2] for pair in query.split("&"))]):
            if len(text) >= SIGNED:
                self._redactor.renew(f"{slot}.{n}", text)

    async def _ask(self, request: Request, watch: Watch) -> _Told:
        def read(response: Response) -> _Told:
            if response.status in (204, 205) or not response.body.strip():
                return _Told(response, None)
            try:
                return _Told(response, self._read(response))
            except TooLarge:
                asked = self._transport.shown(response.request)
                raise SourceChanged(f"{asked}: over limits.max_body ({self._max_body} bytes), unpacked") from None

        return await self._transport.send(request, self._credentials, self._limits, watch, read)

    def _read(self, told: Answered) -> Answer:
        files = self._formats.unpacked(told.body, self._max_body)
        return self._formats.answer(files, told.headers.get("content-type", ""), self._max_body)

    def _said(self, told: _Told) -> str:
        """A URL in it may be all that it takes to get a report."""
        response = told.response
        text = masked(self._redactor.scrub(response.body[:5000].decode("utf-8", "replace")))
        begins = _SIGNED.sub(rf"\1{MASK}", text)[:200]
        return f"{self._transport.shown(response.request)} answered {response.status} ({begins!r})"


def _created(stream: Stream, job: Config) -> Stream:
    """The stream whose request creates the job: its own, and over it what `create` says."""
    create = job.create
    own: dict[str, object] = {"path": create.path or stream.path, "method": create.method or stream.method or "POST"}
    if create.bodies_written():
        own |= {"json_": create.json_, "form": create.form, "graphql": create.graphql}
    if "list_style" in create.model_fields_set:
        own |= {"list_style": create.list_style}
    return stream.model_copy(update={**own, "params": {**stream.params, **create.params}, "format": "auto"})


def _named(job: Job) -> str:
    return f"the job {job.id}" if job.id else f"the job of {job.created}"
