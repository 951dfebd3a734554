"""How the requests of a stream are made: method, body, and where a value goes that changes from one to the next."""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from ingest.config import placeholders
from ingest.config.part import Mistake, Part
from ingest.config.values import HeaderName, Params, plain_path
from ingest.paths import JsonPath

Method = Literal["GET", "POST", "PUT", "PATCH", "QUERY", "SEARCH", "REPORT", "PROPFIND"]
ListStyle = Literal["repeat", "comma", "brackets", "json"]


def _json(value: object) -> object:
    """What JSON can hold; placeholders in its texts."""
    _numbers(value)
    return placeholders.check_all(value)


def _numbers(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{value}` is no number of JSON")
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _numbers(inner)


def _query(text: str) -> str:
    """Its braces are GraphQL's own, so nothing is filled in; `{cursor}` alone may be a field."""
    for _, name in placeholders.found(text):
        if name != "cursor":
            raise ValueError(f"holds `{{{name}}}`, which is not filled here; put it into `variables`")
    return text


def _variables(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping (name: value)")
    return _json(value)


Json = Annotated[Any, PlainValidator(_json), WithJsonSchema({"type": ["object", "array"]})]
Variables = Annotated[Mapping[str, Any], PlainValidator(_variables), WithJsonSchema({"type": "object"})]
BodyPath = Annotated[JsonPath, PlainValidator(plain_path), WithJsonSchema({"type": "string"})]


class GraphQL(Part):
    query: Annotated[str, AfterValidator(_query)]
    """The query, sent as it is written."""
    variables: Variables = Field({})
    """Its variables; placeholders stand here."""


class Placed(Part):
    """A value that a request carries in one of several places."""

    PLACES: ClassVar[tuple[str, ...]] = ("param", "header", "body")

    param: str | None = None
    """The query parameter that takes it."""
    header: HeaderName | None = None
    """Instead: the header that takes it."""
    body: BodyPath | None = None
    """Instead: where it stands in the body: $.page.after. What is missing on the way is made."""

    @property
    def places(self) -> list[str]:
        """The keys that say where it goes; a default counts only where none is written."""
        given = [key for key in self.PLACES if getattr(self, key) not in (None, False)]
        written = [key for key in given if key in self.model_fields_set]
        return written or (["param"] if self.param is not None else [])

    def misplaced(self) -> Iterable[Mistake]:
        places = self.places
        if not places:
            yield "", f"where does it go? write one of {', '.join(self.PLACES)}"
        elif len(places) > 1:
            yield places[1], f"it goes to one place; `{places[0]}` says so already"


class Composed(Part):
    """What of a stream shapes its requests."""

    method: Method | None = None
    """GET, or POST where the request has a body."""
    params: Params = Field({})
    """Query parameters, beside the source's."""
    json_: Json | None = Field(None, alias="json")
    """A body: JSON, written here as YAML."""
    form: Params | None = None
    """A body: the fields of a form."""
    graphql: GraphQL | None = None
    """A body: a query with its variables."""
    list_style: ListStyle = "repeat"
    """How a list is sent as a parameter: a=1&a=2, a=1,2, a[]=1&a[]=2 or a=[1,2]."""

    def bodies_written(self) -> list[str]:
        bodies = {"json": self.json_, "form": self.form, "graphql": self.graphql}
        return [key for key, value in bodies.items() if value is not None]

    def bodies(self, placed: Iterable[tuple[str, Placed]]) -> Iterable[Mistake]:
        """`placed`: what is put into it, with its key."""
        written = self.bodies_written()
        if len(written) > 1:
            yield written[1], f"a request has one body; `{written[0]}` is one already"
        for key, part in placed:
            if part.body is None:
                continue
            if self.form is not None and len(part.body.steps) > 1:
                yield f"{key}.body", f"`{part.body}` leads into something nested; a form has names only"
            if self.graphql is not None and part.body.steps[0] not in ("variables", "extensions"):
                yield f"{key}.body", f"`{part.body}` is no variable; write $.variables.{part.body.steps[-1]}"
