"""Who is told when a person must look at something."""

from typing import Literal

from pydantic import Field

from ingest.config.part import Part
from ingest.config.values import Secret

NotifyEvent = Literal["job.dead", "stream.failed"]


class Notify(Part):
    """A message to a URL, once for each incident; no monitoring is needed for it."""

    url: Secret
    """Where messages are posted as {"text": …}, which Slack and others take: ${env:HOOK}."""
    on: tuple[NotifyEvent, ...] = Field(("job.dead", "stream.failed"), min_length=1)
    """`stream.failed`: a run of a stream that trying again cannot mend, or whose tries are used up; `job.dead`: any
    other job that waits for a person, and that one too where `stream.failed` is not named."""
