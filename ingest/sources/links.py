"""Where an answer leads: the Link header, and the URLs that it or a body names."""

import re
from urllib.parse import urldefrag, urljoin

from ingest.errors import SourceChanged
from ingest.redaction import shown_whole

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
        raise SourceChanged(f"the API names {shown_whole(target, SHOWN)}, which is no URL: {exc}") from None
