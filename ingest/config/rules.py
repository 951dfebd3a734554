"""`errors`: what an answer means that is not what it seems: an error with status 200, a refusal that is none."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ingest.config.part import Mistake, Part
from ingest.config.values import SCALAR_SCHEMA, AnswerPath, HeaderName, Whole

Action = Literal["retry", "rate_limited", "fail", "skip", "end", "refresh_auth", "restart_listing"]
AnyStatus = Annotated[Whole, Field(ge=100, le=599)]


def _many(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


def expression(text: str) -> str:
    """A JMESPath expression. Raises ValueError."""
    import jmespath  # only those who write one wait for it
    from jmespath.exceptions import JMESPathError

    try:
        jmespath.compile(text)
    except JMESPathError as exc:
        first = str(exc).strip().splitlines()[0]
        raise ValueError(f"`{text[:60]}` is no JMESPath expression: {first}") from exc
    return text


_STATUS: Mapping[str, Any] = {"type": "integer", "minimum": 100, "maximum": 599}
Statuses = Annotated[
    tuple[AnyStatus, ...],
    BeforeValidator(_many),
    WithJsonSchema({"anyOf": [_STATUS, {"type": "array", "items": _STATUS}]}),
]
Expression = Annotated[str, AfterValidator(expression)]


class When(Part):
    """What an answer must be; everything that is written must hold."""

    status: Statuses = ()
    """Its status, or one of several."""
    has: AnswerPath | None = None
    """Where something stands in it that is not null: $.error."""
    header: Mapping[HeaderName, Annotated[str, SCALAR_SCHEMA]] = Field({})
    """Headers and their values."""
    where: Expression | None = None
    """A JMESPath expression about its body that is true."""

    def mistakes(self) -> Iterable[Mistake]:
        if not (self.status or self.has or self.header or self.where):
            yield "", "every answer would match; write one of status, has, header, where"


class Rule(Part):
    when: When
    """Which answers."""
    do: Action
    """What they mean."""
