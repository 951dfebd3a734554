"""The `RateLimit` header of the IETF's drafts (draft-ietf-httpapi-ratelimit-headers): 07 and before it, and since 08.

RateLimit: limit=100, remaining=50, reset=5
RateLimit: "default";r=50;t=5, "daily";r=0;t=3600
RateLimit-Policy: "default";q=100;w=60
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_MEMBER = re.compile(r'(?:"([^"]*)"|([A-Za-z*][\w*.:/-]*))((?:\s*;[^,]*)?)', re.ASCII)
_PARAMETER = re.compile(r";\s*([a-z*][\w.*-]*)\s*=\s*(\d{1,15})", re.ASCII)
_OLD = re.compile(r"\b(limit|remaining|reset)\s*=\s*(\d{1,15})", re.ASCII)


class Share(NamedTuple):
    remaining: int
    reset: int | None  # seconds
    limit: int | None


def shares(value: str, policy: str = "") -> Iterator[Share]:
    """What remains of each quota; what cannot be read says nothing."""
    old = {name: int(number) for name, number in _OLD.findall(value)}
    if "remaining" in old:
        yield Share(old["remaining"], old.get("reset"), old.get("limit"))
        return
    limits = {name: parameters.get("q") for name, parameters in _members(policy)}
    for name, parameters in _members(value):
        if "r" in parameters:
            yield Share(parameters["r"], parameters.get("t"), limits.get(name))


def _members(value: str) -> Iterator[tuple[str, dict[str, int]]]:
    """The items of a list (RFC 9651, 3.1) with those of their parameters that are whole numbers."""
    for quoted, bare, parameters in _MEMBER.findall(value):
        yield quoted or bare, {name: int(number) for name, number in _PARAMETER.findall(parameters)}
