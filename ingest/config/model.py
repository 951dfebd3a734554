"""The configuration as the rest of the program sees it: typed, frozen, every default filled in.

Names are the keys of the file. Durations are seconds, sizes bytes. Strings may still hold `${env:…}` and `${file:…}`:
`references.resolve` replaces them in the part that is used, when it is used. What is not here is not built,
and the loader refuses it by name.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from ingest.config import placeholders
from ingest.config.auth import ApiKey, Auth, Basic, OAuth2, Probe
from ingest.config.deletes import UNSEEN, Deletes, Expect, FeedPlan, SweepPlan, feeds
from ingest.config.incremental import Incremental, Since, Until
from ingest.config.job import CreateJob, DownloadJob, Job, PollJob
from ingest.config.notify import Notify
from ingest.config.pagination import (
    AnyPaginate,
    CursorToken,
    Keyset,
    LinkHeader,
    NextUrl,
    ObjectToken,
    Offset,
    PageNumber,
    Paginate,
    SinglePage,
)
from ingest.config.parent import ParentStream, kinship
from ingest.config.part import Mistake, Part
from ingest.config.records import Decode, Records, RecordSchema, Transform, Version, exploded_twice
from ingest.config.requests import Composed, GraphQL, Placed
from ingest.config.rules import Rule, When
from ingest.config.schedule import Dst, Scheduled
from ingest.config.security import Log, Security
from ingest.config.session import Login, Send, Session
from ingest.config.signing import Hmac, Jwt
from ingest.config.tasks import JobsPlan, Task
from ingest.config.tls import Tls
from ingest.config.values import (
    BaseUrl,
    Count,
    DatabaseUrl,
    Duration,
    Flag,
    HeaderName,
    HeaderValue,
    Host,
    IdPaths,
    Listen,
    Name,
    Params,
    Rate,
    RecordPath,
    RequestPath,
    Scalar,
    Size,
    Topic,
    TopicPattern,
    Wait,
    Whole,
)
from ingest.paths import Root

__all__ = [
    "AnyPaginate",
    "ApiKey",
    "Auth",
    "Basic",
    "BatchLimits",
    "Composed",
    "Config",
    "CreateJob",
    "CursorToken",
    "Decode",
    "Deletes",
    "DownloadJob",
    "Dst",
    "Duration",
    "Expect",
    "FeedPlan",
    "GraphQL",
    "Hmac",
    "Incremental",
    "Job",
    "JobsPlan",
    "Jwt",
    "Keyset",
    "Limits",
    "LinkHeader",
    "Log",
    "Login",
    "Name",
    "NextUrl",
    "Notify",
    "OAuth2",
    "ObjectToken",
    "Offset",
    "Ops",
    "PageNumber",
    "Paginate",
    "Params",
    "ParentStream",
    "Part",
    "Placed",
    "PollJob",
    "Probe",
    "RecordPath",
    "RecordSchema",
    "Records",
    "Retry",
    "Rule",
    "Scalar",
    "Scheduled",
    "Security",
    "Send",
    "Session",
    "Since",
    "SinglePage",
    "Size",
    "Source",
    "StoreConsumer",
    "Stream",
    "SweepPlan",
    "Task",
    "Timeout",
    "Tls",
    "TopicOverride",
    "Topics",
    "Transform",
    "Until",
    "Version",
    "When",
]

Headers = Mapping[HeaderName, HeaderValue]
Status = Annotated[Whole, Field(ge=300, le=599)]


SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "private-token"})


class Timeout(Part):
    """Limits of one try of a request."""

    connect: Wait = 10.0
    """Until the connection stands."""
    read: Wait = 60.0
    """Between two pieces of the answer."""
    total: Wait = 300.0
    """For the whole try."""


class Retry(Part):
    """What happens when a request fails and a later try may succeed."""

    attempts: Count = 8
    """Tries per request, the first one included."""
    base: Wait = 0.5
    """The first wait; every further one may be twice as long."""
    cap: Wait = 60.0
    """No wait of ours is longer."""
    budget: Duration = 1200.0
    """One request with all its own waits takes no longer."""
    max_wait: Duration = 3600.0
    """The longest wait that an API may ask for; a longer one ends the run as temporarily unavailable."""
    statuses: frozenset[Status] = frozenset({408, 425, 429, 500, 502, 503, 504})
    """Answers that are worth another try."""
    wait_headers: tuple[HeaderName, ...] = (
        "Retry-After",
        "RateLimit",
        "RateLimit-Reset",
        "X-RateLimit-Reset",
        "X-Rate-Limit-Reset",
    )
    """Headers that say how long to wait; the longest wins."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.base > self.cap:
            yield "cap" if "cap" in self.model_fields_set else "base", "`base` is longer than `cap`"


class Limits(Part):
    """How fast and how much."""

    rate: Rate | None = None
    """How many requests may leave in a second, minute, hour or day, of all processes that poll the source: 100/s."""
    burst: Count | None = None
    """How many of them may leave at once; absent: a tenth of a second's worth, at least one."""
    concurrency: Count = 8
    """How many requests of one process may be under way, of all streams; and how many of its jobs run at a time."""
    max_body: Size = 64_000_000
    """An answer that is larger, unpacked, fails the stream."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.burst is not None and self.rate is None:
            yield "burst", "`burst` says how many requests of `rate` may leave at once: name a `rate` too"


class Stream(Scheduled, Composed):
    """One listing of an API: a topic of events."""

    path: RequestPath
    """What follows base_url: /charges."""
    headers: Headers = Field({})
    """Headers, beside the source's."""
    auth: Auth | None = None
    """Instead of the source's."""
    timeout: Timeout | None = None
    """Over the source's."""
    retry: Retry | None = None
    """Over the source's."""
    errors: tuple[Rule, ...] | None = None
    """Instead of the source's."""
    format: Literal["auto", "json", "jsonl", "csv", "xml"] = "auto"
    """What the answers are; packed or not, is seen. `auto`: their bytes say it, and then their Content-Type."""
    records: Records
    """Where the list of records stands in an answer: $.data, or $ where the answer is the list."""
    id: IdPaths = ()
    """What identifies a record: a path, or several; absent: the hash of the record."""
    version: Version = Version()
    """What tells two states of a record apart: a path, none, or a hash; absent: the hash of the record."""
    seen_limit: Annotated[Whole, Field(ge=0)] = 100_000
    """How many published ids are remembered where not all are."""
    key: RecordPath | None = None
    """The partition key; absent: the id."""
    occurred_at: RecordPath | None = None
    """When it happened."""
    topic: Topic = "{source}.{stream}"
    """Where its events go."""
    paginate: AnyPaginate = SinglePage()
    """How the listing goes on."""
    incremental: Incremental | None = None
    """Where the next run begins; absent: every run lists everything."""
    transform: tuple[Transform, ...] = ()
    """What is changed between the API and the log, step by step."""
    schema_: RecordSchema | None = Field(None, alias="schema")
    """What every published record must be: a JSON Schema in a file of its own."""
    parent: ParentStream | None = None
    """The stream for each of whose records this one is listed; absent: there is one listing."""
    conditional: Flag = False
    """Whether the API is asked for an answer only where it has another than the one before (ETag, Last-Modified)."""
    job: Job | None = None
    """How the API is asked for a report that it makes meanwhile; absent: it answers at once."""
    decode: Decode = Decode()
    """What becomes of a record that JSON forbids."""
    deletes: Deletes | None = None
    """How it learns what is gone; absent: it does not."""
    expect: Expect | None = None
    """What a complete listing must hold."""

    def mistakes(self) -> Iterable[Mistake]:
        yield from Scheduled.mistakes(self)
        yield from _without_credentials(self)
        yield from self.bodies(self.placed())
        yield from self.unfilled()
        yield from self._unconditional()
        yield from self._undownloadable()
        if self.deletes is not None and not self.id:
            yield "deletes", "`deletes` needs `id`: what is gone has no record to hash"
        yield from exploded_twice(self.transform)
        if self.paginate.listing_cap is not None and (wanting := self._unordered()):
            yield "paginate.listing_cap", f"`listing_cap` begins again at the last cursor value, and needs {wanting}"
        if self.deletes is not None and self.deletes.sweep is not None and self.hides_rows:
            yield "deletes.sweep", UNSEEN

    @property
    def hides_rows(self) -> bool:
        """Whether a listing of everything may lack rows: behind a cap nobody is asked for those without the field."""
        capped = self.paginate.listing_cap is not None
        return capped and self.incremental is not None and self.incremental.on_null != "fail"

    def _unconditional(self) -> Iterable[Mistake]:
        if self.conditional and self.paginate.type != "none":
            yield "conditional", "only with `paginate: none`: a first page that is the same says nothing of the second"
        elif self.conditional and (self.method not in (None, "GET") or any(self.bodies_written())):
            yield "conditional", "`conditional` means nothing to a request that is no GET"
        elif self.conditional and self.job is not None:
            yield "conditional", "`conditional` means nothing to a report that is made anew"

    def _undownloadable(self) -> Iterable[Mistake]:
        if self.job is not None and self.job.download.url and self.paginate.type not in ("none", "link", "next_url"):
            yield "paginate", "the API names the URL of a report; only `link` and `next_url` lead on from there"
        if self.job is not None and self.paginate.listing_cap is not None:
            yield "paginate.listing_cap", "a report is whole; `incremental.window` asks for smaller ones"

    def _unordered(self) -> str | None:
        """What is missing for a listing that can begin at any of its rows."""
        incremental = self.incremental
        if incremental is None or incremental.type not in ("timestamp", "integer"):
            return "`incremental` by a time or a number"
        names = {name for _, name in self.placeholders()}
        if incremental.since is None and names.isdisjoint({"cursor", "window.start"}):
            return "`incremental.since`: how the API is asked for it"
        return None if incremental.order == "asc" else "`incremental.order: asc`, and an API that sorts by it"

    def placed(self) -> Iterable[tuple[str, Placed]]:
        """What paging and incremental reading put into requests, with its key."""
        since = None if self.incremental is None else self.incremental.since
        until = getattr(self.incremental, "until", None)
        parts = {"paginate": self.paginate, "incremental.since": since, "incremental.until": until}
        return [(key, part) for key, part in parts.items() if isinstance(part, Placed)]

    def placeholders(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Those of its requests: where each stands, and its name."""
        graphql = {"variables": self.graphql and self.graphql.variables}
        body = {"json": self.json_, "form": self.form, "graphql": graphql}
        yield from placeholders.found({"path": self.path, "params": self.params, "headers": self.headers, **body})
        if self.job is not None:
            yield from ((("job", "create", *path), name) for path, name in self.job.of_the_creation())

    def unfilled(self) -> Iterable[Mistake]:
        """Placeholders that nothing fills, and bounds that nothing takes."""
        names = set()
        for path, name in self.placeholders():
            names.add(name)
            if wanting := self.wanting(name):
                yield ".".join(path), f"nothing fills `{{{name}}}`: it needs {wanting}"
        for name, kept in self.records.keep.items():
            if kept.root is Root.PARENT and self.parent is None:
                yield f"records.keep.{name}", f"`{kept}` needs `parent`, the stream whose records have it"
        token = self.paginate
        without_first = isinstance(token, CursorToken) and token.in_path and token.first is None
        if without_first and any(name == "cursor" for _, name in placeholders.found(self.path)):
            yield "paginate.in_path", "the first page has no token for the `{cursor}` in `path`; write `first`"
        if self.incremental is not None:
            yield from self.incremental.untaken(names, self.paginate.type)

    def wanting(self, placeholder: str) -> str | None:
        """What the stream would need to fill it; None: it does."""
        subject = placeholder.split(".")[0]
        if subject == "parent":
            return None if self.parent is not None else "`parent`, the stream whose records do"
        if subject == "job":
            return "a job, and to stand in `job.poll` or `job.download`"
        if self.incremental is not None or (subject == "cursor" and getattr(self.paginate, "in_path", False)):
            return None
        return "`incremental`" if subject == "window" else "`incremental`, or `paginate` with `in_path: true`"


class Source(Part):
    """An API that is polled."""

    base_url: BaseUrl
    """Where its paths begin: https://api.example.com/v1."""
    headers: Headers = Field({})
    """Sent with every request."""
    params: Params = Field({})
    """Query parameters of every request."""
    allow_hosts: tuple[Host, ...] = ()
    """Hosts that a next link, a redirect or a download may name besides base_url's; they get no credentials."""
    auth_hosts: tuple[Host, ...] = ()
    """Those of them that get credentials too."""
    auth: Auth | None = None
    """Who we are."""
    tls: Tls | None = None
    """Certificates for its connections."""
    limits: Limits = Limits()
    timeout: Timeout = Timeout()
    retry: Retry = Retry()
    errors: tuple[Rule, ...] = ()
    """What an answer means that is not what it seems; the first that matches counts."""
    streams: Mapping[Name, Stream] = Field(min_length=1)
    """What is listed, by name."""

    def mistakes(self) -> Iterable[Mistake]:
        yield from _without_credentials(self)
        yield from self._unreachable()
        yield from kinship(self)
        yield from feeds(self)
        for path, placeholder in self.placeholders():
            for name, stream in self.streams.items():
                if wanting := stream.wanting(placeholder):
                    yield ".".join(path), f"in `{name}` nothing fills `{{{placeholder}}}`: it needs {wanting}"

    def _unreachable(self) -> Iterable[Mistake]:
        wild = tuple(one[1:] for one in self.allow_hosts if one.startswith("*."))
        for n, host in enumerate(self.auth_hosts):
            known = host in self.allow_hosts or host.endswith(wild) or "${" in "".join((host, *self.allow_hosts))
            if not known:
                yield f"auth_hosts.{n}", f"`{host}` is not in `allow_hosts`: it would not be asked at all"
        if self.tls is not None and self.base_url.startswith("http:"):
            yield "tls", "`tls` means nothing: base_url begins with http:, not https:"

    def placeholders(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Those of all its requests: where each stands, and its name."""
        return placeholders.found({"headers": self.headers, "params": self.params})


def _without_credentials(part: Source | Stream) -> Iterable[Mistake]:
    """An `auth` with nothing in it, and secrets that stand in the file among the headers."""
    if "auth" in part.model_fields_set and part.auth is None:
        yield "auth", "empty: requests would go out without credentials; fill it in, or leave it out"
    for name, value in part.headers.items():
        if name.lower() in SECRET_HEADERS and "${" not in value:
            yield f"headers.{name}", "secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}"


class BatchLimits(Part):
    """A batch is written when one of them is reached."""

    records: Count = 5000
    bytes: Size = 8_000_000
    wait: Duration = 0.5


class StoreConsumer(Part):
    """Writes events into the store."""

    kind: Literal["store"]
    topics: tuple[TopicPattern, ...] = Field(min_length=1)
    """Topics or globs; `*` crosses dots, dead letters match only where the pattern says `.dlq.`."""
    batch: BatchLimits = BatchLimits()


class TopicOverride(Part):
    partitions: Count | None = None
    replication: Count | None = None
    min_insync: Count | None = None
    retention: Duration | None = None
    max_message: Size | None = None


class Topics(Part):
    """How topics are created; on SQLite only `partitions` and `max_message` mean something."""

    create: Flag = True
    """Whether missing topics are created."""
    partitions: Count = 12
    replication: Count = 3
    """Copies of every partition."""
    min_insync: Count = 2
    """Copies that must have a record before it counts as written."""
    retention: Duration = 604_800.0
    """How long records are kept."""
    max_message: Size = 1_000_000
    durability: Literal["production", "relaxed"] = "production"
    """`production` refuses a topic that could lose what was acknowledged."""
    overrides: Mapping[str, TopicOverride] = Field({})
    """The same keys for single topics, by name."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.min_insync > self.replication:
            key = "min_insync" if "min_insync" in self.model_fields_set else "replication"
            yield key, f"min_insync ({self.min_insync}) is more than replication ({self.replication})"
        for name, one in self.overrides.items():
            replication, min_insync = one.replication or self.replication, one.min_insync or self.min_insync
            if min_insync > replication and (one.replication or one.min_insync):
                yield f"overrides.{name}", f"min_insync ({min_insync}) is more than replication ({replication})"


class Ops(Part):
    listen: Listen = "127.0.0.1:9090"
    """Where /metrics, /healthz and /readyz answer: HOST:PORT."""


class Config(Part):
    """The whole file."""

    version: Literal[1]
    """Of this format."""
    log: Log | None = None
    """The event log, or its URL alone; absent: INGEST_LOG_URL, else the embedded file."""
    store: DatabaseUrl | None = None
    """The event store: postgresql://… or sqlite:///PATH; absent: INGEST_STORE_URL, else the embedded file."""
    state: DatabaseUrl | None = None
    """Checkpoints, jobs and leases; absent: INGEST_STATE_URL, else the store's."""
    topics: Topics = Topics()
    sources: Mapping[Name, Source] = Field({})
    """What is polled, by name."""
    consumers: Mapping[Name, StoreConsumer] = Field({})
    """Who reads, by name."""
    tasks: Mapping[Name, Task] = Field({})
    """Functions that are called on schedule, by name."""
    jobs: JobsPlan = JobsPlan()
    ops: Ops | None = None
    """Metrics and health; absent: off under `--once`, else 127.0.0.1:9090 or a free port."""
    notify: Notify | None = None
    """Who is told when a person must look at something; absent: nobody."""
