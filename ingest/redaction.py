"""Takes secrets out of everything that people can read: log lines, errors, saved state, dead letters.

A secret is found as it is, percent-encoded once or twice, in base64 (also inside a longer text, such as
`user:password`) and with the escapes of JSON and Python. Shorter ones than MIN_LENGTH are not looked for: they would
black out ordinary text.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote, quote_plus

MIN_LENGTH = 4  # characters of a secret
MIN_BASE64 = 8  # characters of the middle of an encoded secret, which must not match by chance
MASK = "***"

_ARMOUR = re.compile(r"-----(BEGIN|END) [A-Z ]+-----")  # lines that are the same in every PEM file


def shown_whole(text: str, most: int) -> str:
    """For a message that is scrubbed later: never a part of a text, as half a secret is not found there."""
    return repr(text) if len(text) <= most else f"a text of {len(text)} characters"


class Redactor:
    """Knows the secrets of this process. Costs nothing while it knows none."""

    def __init__(self) -> None:
        self._forms: set[str] = set()
        self._renewed: dict[str, tuple[str, set[str]]] = {}  # slot → (secret, its forms)
        self._pattern: re.Pattern[str] | None = None

    def add(self, secret: str) -> None:
        """From now on it is scrubbed; several lines, each of them too."""
        known = len(self._forms)
        for text in {secret, secret.strip(), *secret.splitlines()}:
            if len(text) >= MIN_LENGTH and not _ARMOUR.fullmatch(text):
                self._forms.update(_forms(text))
        if len(self._forms) > known:
            self._compile()

    def renew(self, slot: str, secret: str) -> None:
        """As `add`, for one that takes the place of the last one of its slot, so that rotation costs no memory."""
        if len(secret) < MIN_LENGTH or self._renewed.get(slot, ("",))[0] == secret:
            return
        self._renewed[slot] = (secret, set(_forms(secret)))
        self._compile()

    def _compile(self) -> None:
        every = self._forms.union(*(forms for _, forms in self._renewed.values()))
        longest_first = sorted(every, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def scrub(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def scrub_value(self, value: Any) -> Any:
        """The same value with scrubbed text at every depth of mappings and lists; an exception becomes its text."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, bytes):
            return self.scrub(value.decode(errors="replace")).encode()
        if isinstance(value, Mapping):
            return {self.scrub_value(key): self.scrub_value(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.scrub_value(item) for item in value]
        return value if value is None or isinstance(value, bool | int | float) else self.scrub(str(value))

    def processor(self, _logger: object, _method: str, event: MutableMapping[str, Any] | str) -> Any:
        """A processor of structlog; stands last, before or behind the renderer."""
        return self.scrub_value(event)


def _forms(secret: str) -> Iterator[str]:
    raw = secret.encode(errors="surrogatepass")
    yield secret
    for encoded in (quote(raw, safe=""), quote(raw, safe="/"), quote_plus(raw)):
        yield encoded
        yield quote(encoded, safe="")  # of a URL that is a parameter of another, as in `?next=…`
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)
    if not secret.isascii():
        yield from (misread := raw.decode("latin-1"), json.dumps(misread)[1:-1])  # as a server may read a header
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode()
        yield whole
        yield whole.rstrip("=")
        yield from _inside_base64(raw, encode)


def _inside_base64(raw: bytes, encode: Any) -> Iterator[str]:
    """How base64 shows the secret behind 0, 1 or 2 other bytes (modulo 3), as far as it depends on the secret alone."""
    for before in range(3):
        first = -(-before * 8 // 6)  # the first character that holds no bit of what stands before
        last = (before + len(raw)) * 8 // 6  # behind the last one that holds no bit of what follows
        middle: str = encode(b"\0" * before + raw).decode()[first:last]
        if len(middle) >= MIN_BASE64:
            yield middle
