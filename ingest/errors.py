"""Errors by consequence: the class of an error answers what its caller should do.

    IngestError
    ├─ ConfigError              a person must edit something                exit 2
    ├─ Transient(retry_after)   the same call may work later                back off, keep the lease
    │   ├─ SourceUnavailable ── RateLimited, Unreadable
    │   ├─ LogUnavailable
    │   └─ StoreUnavailable     (the event store or the state store)
    ├─ Permanent                trying again cannot help                    the job is dead at once
    │   ├─ SourceRefused        401, 403, 404 …
    │   └─ SourceChanged ─ Unlisted   the answer no longer has the shape we know
    ├─ BadRecord                this record, not its batch                  dead letter, go on
    └─ Superseded               someone else owns this now                  drop the work, no alarm

Drivers' errors are translated once, at the edge of the adapter that calls the driver. A message says what we did, what
came back, where it is configured and what to try; it never holds a secret.
"""


class IngestError(Exception):
    """Everything that this project raises on purpose."""


class ConfigError(IngestError):
    """A person must edit something: the configuration, a topic, a schema that was not migrated."""


class Transient(IngestError):
    """The same call may work later. `retry_after`: seconds that the other side asked for, else None."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SourceUnavailable(Transient):
    """The API did not answer, or answered with something that a later try may mend."""


class RateLimited(SourceUnavailable):
    """The API asked us to wait longer than we are allowed to."""


class Unreadable(SourceUnavailable):
    """What came could not be read, however often it was asked for."""


class LogUnavailable(Transient):
    """The event log did not acknowledge in time. What was sent may or may not be in it."""


class StoreUnavailable(Transient):
    """The event store or the state store did not answer. What was written may or may not be in it."""


class Permanent(IngestError):
    """Trying again cannot help."""


class SourceRefused(Permanent):
    """The API refuses us: 401, 403, 404 and their kind. `status`: of the HTTP answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class SourceChanged(Permanent):
    """The answer no longer has the shape we know: a missing record path, a loop in the listing."""


class Unlisted(SourceChanged):
    """The answer has no list where the records should be."""


class BadRecord(IngestError):
    """This record cannot be handled, its neighbours can.

    `stage`: decode | validate | transform | write | produce; `code`: a SQLSTATE or another short name of the cause.
    """

    def __init__(self, message: str, *, stage: str, code: str = "") -> None:
        super().__init__(message)
        self.stage = stage
        self.code = code


class Superseded(IngestError):
    """Someone else owns this now: a newer holder of the lease, another consumer of the partition."""
