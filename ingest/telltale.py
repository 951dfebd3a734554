"""Names that tell that what follows is a credential, whoever made it: an API may return one that nobody configured.

Found in JSON (also as a text inside JSON), XML, forms, URLs and headers. A token that asks for the next page or run has
another name, and stays: exchanges that were kept are read again.
"""

import re
from collections.abc import Mapping

from ingest.redaction import MASK

_SCHEMES = ("authorization", "proxy-authorization")
_COOKIES = ("cookie", "set-cookie", "set-cookie2")

_TELLS = re.compile(
    r"(?:.*(?:access|refresh|auth|bearer|session|security|csrf|xsrf|identity|login|private|subject)|x?api|x?id|user)token"
    r"|.*(?:password|passphrase|secret|apikey|secretkey|privatekey|sessionkey|secretaccesskey)|passwd|pwd"
    r"|jsessionid|phpsessid"
)
_BETWEEN = re.compile(r"%5f|%2d|[^a-z0-9]", re.IGNORECASE)

_NAME = r"(?P<name>[\w.%-]{2,60})"
_JSON = re.compile(rf'(?P<head>(?P<quote>"){_NAME}"\s*:\s*)(?:"(?:[^"\\]|\\.)*+"|-?\d[\d.eE+-]*)')
_INNER = re.compile(rf'(?P<head>(?P<quote>\\+"){_NAME}(?P=quote)\s*:\s*)(?:(?P=quote).*?(?P=quote)|-?\d[\d.eE+-]*)')
_XML = re.compile(rf"(?P<head><(?:\w+:)?{_NAME}(?:\s[^<>]*)?>)(?:<!\[CDATA\[.*?\]\]>|[^<]+)(?=</)", re.DOTALL)
_PAIR = re.compile(rf"""(?P<head>(?:^|[?&#\s"'])(?:amp;)?{_NAME}=)[^&;#\s"'<>\\]+""")
_BEHIND_PATH = re.compile(rf"""(?P<head>;{_NAME}=)[^?&;#\s"'<>\\]+""")


def tells(name: str) -> bool:
    """Whether the value of this name is a credential."""
    return _TELLS.fullmatch(_BETWEEN.sub("", name).lower()) is not None


def masked(text: str) -> str:
    """The text without what such names stand before."""
    for pattern in (_JSON, _INNER, _XML, _BEHIND_PATH, _PAIR):
        text = pattern.sub(_without, text)
    return text


def masked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """`headers`: names in lower case."""
    return {name: _header(name, value) for name, value in headers.items()}


def _header(name: str, value: str) -> str:
    if name in _COOKIES or tells(name):
        return MASK
    if name in _SCHEMES:
        scheme, space, _ = value.partition(" ")
        return f"{scheme} {MASK}" if space else MASK
    return masked(value)


def _without(match: re.Match[str]) -> str:
    if not tells(match["name"]):
        return match[0]
    quote = match.groupdict().get("quote", "")
    return f"{match['head']}{quote}{MASK}{quote}"
