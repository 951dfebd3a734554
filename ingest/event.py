"""An event and its wire form (CloudEvents 1.0, Kafka binary mode). Nothing else knows either.

    record of an API ──Envelope.messages──▶ Message ──log──▶ Record ──decode──▶ Event ──▶ a row

The value is the record's JSON exactly as the API sent it. What a consumer needs beside it stands in the headers, so
that no consumer has to parse the value to find the eventId.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Protocol

import msgspec

from ingest.errors import BadRecord

Headers = Sequence[tuple[str, bytes]]

SHARED_NAMES = ["ce_specversion", "ce_source", "ce_type", "ce_ingestfence", "content-type"]  # as they are written
SHARED = len(SHARED_NAMES)
OWN_NAMES = ("ce_id", "ce_subject", "ce_time")
DELETED = ".deleted"  # ending of ce_type when the record was deleted


class Form(msgspec.Struct, frozen=True, eq=False):
    """What the headers of many messages have in common: some of them whole, of the others the names.

    A log prepares what it writes of it once, and remembers that by the object."""

    shared: tuple[tuple[str, bytes], ...]
    names: tuple[str, ...] = ()


class Message(msgspec.Struct, frozen=True, gc=False):
    """What is handed to the event log: it keeps key, value and headers byte for byte."""

    key: bytes
    value: bytes
    form: Form
    own: tuple[bytes, ...] = ()  # the headers that `form` only names

    @classmethod
    def of(cls, key: bytes, value: bytes, headers: Headers) -> "Message":
        """One that shares nothing with others."""
        return cls(key, value, Form(tuple(headers)))

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        return [*self.form.shared, *zip(self.form.names, self.own, strict=True)]

    def size(self) -> int:
        """Bytes that this message takes in the log, an upper bound (KIP-98: varints of at most 5 bytes)."""
        headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in self.headers)
        return len(self.key) + len(self.value) + headers + 100


class Polled(Protocol):
    """A record of an API. `occurred_at` is RFC 3339, `value` JSON; `deleted`: it says that the record is gone."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> str | None: ...
    @property
    def key(self) -> str: ...
    @property
    def occurred_at(self) -> str | None: ...
    @property
    def value(self) -> bytes: ...
    @property
    def deleted(self) -> bool: ...


class Record(Protocol):
    """A message as the log gives it back. aiokafka's ConsumerRecord is one as it stands.

    `timestamp` is when it was appended or published, milliseconds since 1970.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event as a consumer sees it, with the place in the log where it stands."""

    id: str
    source: str
    stream: str
    key: str
    type: str
    subject: str
    occurred_at: str | None  # RFC 3339
    fence: int  # of the lease under which it was published
    payload: bytes  # JSON, as the API sent it
    content_type: str
    topic: str
    partition: int
    offset: int
    published_ms: int  # milliseconds since 1970


class Envelope:
    """Makes the messages of one stream under one fence; what they share is encoded once."""

    def __init__(self, source: str, stream: str, fence: int) -> None:
        self.source, self.stream = source, stream
        self._alive = _forms(source, stream, fence, "")
        self._dead = _forms(source, stream, fence, DELETED)

    def messages(self, records: Sequence[Polled]) -> list[Message]:
        if any(map(attrgetter("deleted"), records)):
            return [self._messages([one], deleted=one.deleted)[0] for one in records]
        return self._messages(records, deleted=False)

    def _messages(self, records: Sequence[Polled], *, deleted: bool) -> list[Message]:
        source, stream = self.source, self.stream
        plain, timed = self._dead if deleted else self._alive
        name = deletion_id if deleted else event_id
        keys = [r.key.encode() for r in records]
        ids = [(name(source, stream, r.id, r.version).encode(), r.id.encode()) for r in records]
        times = [r.occurred_at for r in records]
        forms = [plain if time is None else timed for time in times]
        own = [both if time is None else (*both, time.encode()) for both, time in zip(ids, times, strict=True)]
        return list(map(Message, keys, [r.value for r in records], forms, own))


def _forms(source: str, stream: str, fence: int, ending: str) -> tuple[Form, Form]:
    """Of events without a time, and of those with one."""
    shared = (
        ("ce_specversion", b"1.0"),
        ("ce_source", f"/{source}/{stream}".encode()),
        ("ce_type", f"{source}.{stream}{ending}".encode()),
        ("ce_ingestfence", b"%d" % fence),
        ("content-type", b"application/json"),
    )
    return Form(shared, ("ce_id", "ce_subject")), Form(shared, ("ce_id", "ce_subject", "ce_time"))


def decode_all(records: Sequence[Record]) -> tuple[list[Event], list[tuple[Record, BadRecord]]]:
    """What `decode` gives and raises for each, in their order. Where a record begins with the headers of the one before
    it, as those of one stream do, its own are where they are written; to look for them takes twice as long."""
    events: list[Event] = []
    bad: list[tuple[Record, BadRecord]] = []
    common: Headers | None = None
    source = stream = kind = content_type = ""
    fence = 0
    for record in records:
        headers = record.headers
        if headers[:SHARED] == common:
            try:
                time: bytes | None = None
                if len(headers) == SHARED + 2:
                    (first, name), (second, subject) = headers[SHARED:]
                    third = "ce_time"
                else:
                    (first, name), (second, subject), (third, time) = headers[SHARED:]
                if (first, second, third) != OWN_NAMES:
                    raise ValueError
                events.append(
                    Event(
                        name.decode(), source, stream, (record.key or b"").decode(), kind, subject.decode(),
                        None if time is None else time.decode(), fence, record.value or b"", content_type,
                        record.topic, record.partition, record.offset, record.timestamp,
                    )
                )  # fmt: skip
            except (ValueError, AttributeError):
                pass  # not as we write them; what is wrong, `decode` says
            else:
                continue
        try:
            event = decode(record)
        except BadRecord as exc:
            bad.append((record, exc))
        else:
            events.append(event)
            if [name for name, _ in headers[:SHARED]] == SHARED_NAMES:
                common = headers[:SHARED]
                source, stream, kind = event.source, event.stream, event.type
                fence, content_type = event.fence, event.content_type
    return events, bad


def decode(record: Record) -> Event:
    """Raises BadRecord (stage `decode`) when the record is no CloudEvent of ours."""
    headers = dict(record.headers)
    try:
        source, stream, kind, fence, content_type = _shared(
            headers["ce_source"],
            headers["ce_type"],
            headers.get("ce_ingestfence", b"0"),
            headers.get("content-type", b"application/json"),
        )
        time = headers.get("ce_time")
        return Event(  # by position: half of what names cost
            headers["ce_id"].decode(),
            source,
            stream,
            (record.key or b"").decode(),
            kind,
            headers.get("ce_subject", b"").decode(),
            None if time is None else time.decode(),
            fence,
            record.value or b"",
            content_type,
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
        )
    except KeyError as exc:
        raise BadRecord(
            f"no header {exc.args[0]}: not an event of this system", stage="decode", code="no_header"
        ) from exc
    except UnicodeDecodeError as exc:
        raise BadRecord(f"key or header is not UTF-8: {exc.reason}", stage="decode", code="not_utf8") from exc
    except (ValueError, AttributeError, TypeError) as exc:  # Kafka's headers may be null
        raise BadRecord(f"malformed header: {exc}", stage="decode", code="bad_header") from exc


@lru_cache(64)
def _shared(source: bytes, kind: bytes, fence: bytes, content_type: bytes) -> tuple[str, str, str, int, str]:
    """What the events of a stream have in common; nearly every record has that of the one before it."""
    _, name, stream = source.decode().split("/", 2)
    return name, stream, kind.decode(), int(fence), content_type.decode()


def event_id(source: str, stream: str, record_id: str, version: str | None) -> str:
    """`{source}:{stream}:{id}[@{version}]` (docs: configuration, Identity). The last `@` begins the version: in one `@`
    and, so that no two versions are written alike, `%` are percent-encoded."""
    if version is None:
        return f"{source}:{stream}:{record_id}"
    return f"{source}:{stream}:{record_id}@{version.replace('%', '%25').replace('@', '%40')}"


def deletion_id(source: str, stream: str, record_id: str, version: str | None) -> str:
    """`{source}:{stream}:{id}#deleted@{V}`: V: the version of what says that it is gone, or a sweep's start."""
    return event_id(source, stream, f"{record_id}#deleted", version)


def rfc3339(millis: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC."""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
