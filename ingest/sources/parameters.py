"""Parameters as they are sent: texts, and lists in one of four styles."""

from collections.abc import Iterator, Mapping

import msgspec

from ingest.config.requests import ListStyle
from ingest.sources.auth import Params
from ingest.sources.filling import Values, filled


def texts(params: Mapping[str, object]) -> dict[str, str | list[str]]:
    """Configured parameters as texts: booleans in lower case."""
    return {
        name: [as_sent(one) for one in value] if isinstance(value, list) else as_sent(value)
        for name, value in params.items()
    }


def filled_params(params: Params, values: Values) -> dict[str, str | list[str]]:
    """A parameter, or an item of a list, that has no value yet is left out."""
    found: dict[str, str | list[str]] = {}
    for name, value in params.items():
        if isinstance(value, list):
            found[name] = [text for one in value if (text := filled(one, values)) is not None]
        elif (text := filled(value, values)) is not None:
            found[name] = text
    return found


def listed(params: Params, style: ListStyle) -> Params:
    """`repeat` leaves a list as it is: its name is repeated."""
    return params if style == "repeat" else dict(_listed(params, style))


def _listed(params: Params, style: ListStyle) -> Iterator[tuple[str, str | list[str]]]:
    for name, value in params.items():
        if isinstance(value, str):
            yield name, value
        elif style == "brackets":
            yield f"{name}[]", value
        else:
            yield name, ",".join(value) if style == "comma" else msgspec.json.encode(value).decode()


def as_sent(value: object) -> str:
    """A configured scalar: a boolean in lower case."""
    if isinstance(value, str):
        return value  # it may be a Pattern
    return str(value).lower() if isinstance(value, bool) else str(value)
