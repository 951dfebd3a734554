"""`job`: an API that is asked for a report, makes it, and then hands it out."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from ingest.config import placeholders
from ingest.config.part import Mistake, Part
from ingest.config.requests import Composed
from ingest.config.values import AnswerPath, Duration, Params, RequestPath, Wait

Found = Iterator[tuple[tuple[str, ...], str]]


def _words(value: Any) -> Any:
    many = value if isinstance(value, list | tuple) else [value]
    return [str(one).lower() if isinstance(one, bool) else str(one) if isinstance(one, int) else one for one in many]


_WORD: dict[str, Any] = {"type": ["string", "integer", "boolean"]}
Words = Annotated[
    tuple[str, ...],
    BeforeValidator(_words),
    WithJsonSchema({"anyOf": [_WORD, {"type": "array", "items": _WORD}]}),
]


def _secrets(params: Mapping[str, Any]) -> Iterable[Mistake]:
    for name, value in params.items():
        if "${" in str(value):
            yield f"params.{name}", "a secret of the source's or the stream's `params` goes along; write it there"


class CreateJob(Composed):
    """The request that has the report made. What is left out is the stream's own: path, params, body."""

    path: RequestPath | None = None
    """What follows base_url; absent: the stream's `path`."""
    id: AnswerPath | None = None
    """Where its answer names the job: $.reportId."""

    def mistakes(self) -> Iterable[Mistake]:
        yield from self.bodies(())
        yield from _secrets(self.params)


class PollJob(Part):
    """The request that tells how far it is, made again and again."""

    path: RequestPath | None = None
    """What follows base_url, with {job.id} in it."""
    url: AnswerPath | None = None
    """Instead: where the answer to `create` names its URL: header.Location."""
    params: Params = Field({})
    """Query parameters, beside the source's."""
    status: AnswerPath | None = None
    """Where its answer says how far it is; absent: 202 means that it is not done, any other good status that it is."""
    done: Words = ()
    """What it says there when the report is ready."""
    empty: Words = ()
    """What it says when it is ready and holds nothing."""
    failed: Words = ()
    """What it says when there will be none: another is made, once in a run. Anything else: wait."""
    every: Wait = 10.0
    """Between two of them, where the API asks for no longer wait."""
    timeout: Duration = 3600.0
    """From its creation; then the run fails, and the next one has another made."""

    def mistakes(self) -> Iterable[Mistake]:
        if (self.path is None) is (self.url is None):
            yield "path" if self.path else "", "where is it asked for? write one of path, url"
        if self.status is not None and not self.done:
            yield "status", "`status` says how far it is; write `done`: what it says when the report is ready"
        for key in ("done", "empty", "failed"):
            if self.status is None and getattr(self, key):
                yield key, f"`{key}` is what stands at `status`; say where that is"
        yield from _secrets(self.params)


class DownloadJob(Part):
    """The request that gets the report. Its answer is read as any other: `format`, `records`, `paginate`."""

    path: RequestPath | None = None
    """What follows base_url, with {job.id} or {job.FIELD} of the last answer to `poll` in it."""
    params: Params = Field({})
    """Query parameters, beside the source's."""
    url: AnswerPath | None = None
    """Where its URL stands: in the last answer to `poll`, or where there is a `path` in the answer to that."""

    def mistakes(self) -> Iterable[Mistake]:
        if self.path is None and self.url is None:
            yield "", "where is it? write `path`, or `url` where an answer names it"
        if self.path is None and self.params:
            yield "params", "the API names the whole URL; `params` go with a `path`"
        yield from _secrets(self.params)


class Job(Part):
    """create → poll until it is done → download."""

    create: CreateJob
    poll: PollJob
    download: DownloadJob

    def mistakes(self) -> Iterable[Mistake]:
        if self.create.id is None and self.poll.url is None:
            yield "create", "`id` is missing: where the answer names the job"
            return
        for path, name in self.of_a_job():
            if name == "job.id" and self.create.id is None:
                yield ".".join(path), "nothing fills `{job.id}`: it needs `create.id`"
            elif name != "job.id" and path[0] == "poll":
                yield ".".join(path), f"nothing fills `{{{name}}}` yet; {{job.id}} is all that there is"
        for path, name in self.of_the_creation():
            if name.startswith("job."):
                yield ".".join(("create", *path)), f"nothing fills `{{{name}}}`: there is no job yet"

    def of_the_report(self) -> "Job":
        """As far as it shapes what is read: not how long it is waited for."""
        poll = self.poll.model_copy(update={"every": 0.0, "timeout": 0.0})
        return self.model_copy(update={"poll": poll})

    def of_the_creation(self) -> Found:
        """Placeholders of the request that creates it."""
        create = self.create
        graphql = {"variables": create.graphql and create.graphql.variables}
        body = {"json": create.json_, "form": create.form, "graphql": graphql}
        return placeholders.found({"path": create.path, "params": create.params, **body})

    def of_a_job(self) -> Found:
        """Placeholders of the others that a job fills."""
        poll, download = self.poll, self.download
        texts = {
            "poll": {"path": poll.path, "params": poll.params},
            "download": {"path": download.path, "params": download.params},
        }
        return ((path, name) for path, name in placeholders.found(texts) if name.startswith("job."))
