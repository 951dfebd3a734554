"""What a hostile API does to an answer. Each fault is a function from the right answer to the one that is sent."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tests.harness.listings import Answer, Json

Fault = Callable[[Answer], Answer]


def ok(answer: Answer) -> Answer:
    """No fault: for its place in a script."""
    return answer


def status(code: int, body: bytes = b'{"error":"as ordered"}', **headers: str) -> Fault:
    """Another status; `headers` are named with underscores: `status(503, retry_after="2")`."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return lambda answer: replace(answer, status=code, body=body, records=(), headers=named)


def rate_limited(retry_after: str = "1") -> Fault:
    return status(429, retry_after=retry_after)


def reset(answer: Answer) -> Answer:
    """The connection is reset before anything is sent."""
    return replace(answer, cut=0.0)


def truncated(answer: Answer) -> Answer:
    """Half of the body, then the connection is closed."""
    return replace(answer, cut=0.5)


def slow(seconds: float) -> Fault:
    """Half of the body, a pause, the rest."""
    return lambda answer: replace(answer, pause=seconds)


def dripping(seconds: float) -> Fault:
    """Byte by byte."""
    return lambda answer: replace(answer, drip=seconds)


def gzipped(answer: Answer) -> Answer:
    return replace(answer, gzip=True)


def html(answer: Answer) -> Answer:
    """A proxy's page, with status 200 and the content type of JSON."""
    page = b"<html><body>Please log in</body></html>"
    return replace(answer, body=page, records=(), headers=(("content-type", "application/json"),))


def empty(answer: Answer) -> Answer:
    """Status 200 and no body."""
    return replace(answer, body=b"", records=())


def no_content(answer: Answer) -> Answer:
    return replace(answer, status=204, body=b"", records=())


def error_body(error: Json) -> Fault:
    """Status 200 with an error in the body."""
    text = json.dumps(error).encode()
    return lambda answer: replace(answer, body=text, records=(), headers=(("content-type", "application/json"),))


def records_at(name: str) -> Fault:
    """The records are under another key than yesterday."""
    return lambda answer: replace(answer, records_at=name)


def token(text: str) -> Fault:
    """The next page's token is `text`, which leads on the first time and to the same page for ever after.

    `itertools.repeat(token("AAA"))` and `itertools.cycle([token("A"), token("B")])` are listings without an end.
    """
    return lambda answer: replace(answer, token=text)


def link(url: str) -> Fault:
    """The next page's link is `url`, be it another host's."""
    return lambda answer: replace(answer, link=url)


def self_link(answer: Answer) -> Answer:
    """The next page's link is the request that was made."""
    return replace(answer, link=answer.request.origin + answer.request.target)


def redirect(to: str, code: int = 302) -> Fault:
    """`to` is a path, or a whole URL of any origin."""
    return status(code, b"", location=to)


NAMED: Mapping[str, Fault] = {
    "429": rate_limited(),
    "503": status(503),
    "500": status(500),
    "reset": reset,
    "truncated": truncated,
    "html": html,
    "empty": empty,
}


def by_chance(text: str, seed: int) -> Iterator[Fault]:
    """From `"429:0.02,reset:0.01"` (names of NAMED, probabilities): a fault or `ok` for each request, for ever."""
    chances = [(NAMED[name], float(share)) for name, share in (part.split(":") for part in text.split(",") if part)]
    choices = [*(fault for fault, _ in chances), ok]
    weights = [*(share for _, share in chances), 1 - sum(share for _, share in chances)]
    chance = random.Random(seed)
    while True:
        yield chance.choices(choices, weights)[0]
