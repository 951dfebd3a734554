"""What an answer says of what we may still ask: headers of the IETF's drafts, and of the APIs that came before them."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ingest.ratelimit_header import shares
from ingest.retry import waits

SHOPIFY = "x-shopify-shop-api-call-limit"
DRAINS_IN = 20.0  # seconds in which Shopify's bucket runs empty, whatever its size (shopify.dev, "REST rate limits")

_FAMILIES = ("ratelimit", "x-ratelimit", "x-rate-limit")  # -limit, -remaining, -reset
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?", re.ASCII)
_FILLED = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", re.ASCII)


class Quota(NamedTuple):
    remaining: float
    limit: float | None
    seconds: float  # until all that remains may be used up


def quotas(headers: Mapping[str, str], now: float) -> list[Quota]:
    """`headers` has names in lower case, `now` is the time since 1970 in seconds. What cannot be read says nothing."""
    return [*_structured(headers), *_apart(headers, now), *_bucket(headers)]


def _structured(headers: Mapping[str, str]) -> Iterator[Quota]:
    if "ratelimit" in headers:
        for share in shares(headers["ratelimit"], headers.get("ratelimit-policy", "")):
            if share.reset is not None:
                yield Quota(share.remaining, share.limit, share.reset)


def _apart(headers: Mapping[str, str], now: float) -> Iterator[Quota]:
    for family in _FAMILIES:
        remaining = _first_number(headers.get(f"{family}-remaining"))
        reset = headers.get(f"{family}-reset-after", headers.get(f"{family}-reset"))
        if remaining is not None and reset is not None:
            limit = _first_number(headers.get(f"{family}-limit", headers.get(family)))
            for seconds in waits(reset, now):
                yield Quota(remaining, limit, seconds)
                break


def _bucket(headers: Mapping[str, str]) -> Iterator[Quota]:
    """39/40: a bucket that runs out steadily, so all of what is left of it may be used up and one more now and then."""
    match = _FILLED.fullmatch(headers.get(SHOPIFY, ""))
    if match and (limit := float(match[2])):
        remaining = max(0.0, limit - float(match[1]))
        yield Quota(remaining, limit, max(1.0, remaining) * DRAINS_IN / limit)


def _first_number(value: str | None) -> float | None:
    match = None if value is None else _NUMBER.match(value.strip())
    return float(match[0]) if match else None
