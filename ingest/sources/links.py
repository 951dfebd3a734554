"""Where an answer leads: the Link header, and the URLs that it or a body names."""

import re
from urllib.parse import urldefrag, urljoin, urlsplit

from ingest.errors import SourceChanged

SHOWN = 300  # characters of a URL in a message

_LINK = re.compile(r"<([^<>]*)>((?:\s*;\s*[^\s=;,]+\s*(?:=\s*(?:\"[^\"]*\"|[^\s;,]*))?)*)")
_REL = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,]*))", re.IGNORECASE)


def links(header: str) -> dict[str, str]:
    """RFC 8288: relation → target. A link with several relations counts for each."""
    found: dict[str, str] = {}
    for target, parameters in _LINK.findall(header):
        match = _REL.search(parameters)
        for relation in "".join(match.groups("") if match else ()).lower().split():
            found.setdefault(relation, target)
    return found


def resolved(base: str, target: str) -> str:
    """The target as an absolute URL, without its fragment (RFC 3986, 5). Raises SourceChanged for what is none."""
    try:
        return urldefrag(urljoin(base, target)).url
    except ValueError as exc:
        raise SourceChanged(f"the API names {target[:SHOWN]!r}, which is no URL: {exc}") from None


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port (RFC 6454). Raises ValueError for what is no http(s) URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or "\\" in url:
        raise ValueError("this is no plain http(s) URL")
    return parts.scheme, parts.hostname.lower(), parts.port or (443 if parts.scheme == "https" else 80)
