"""Requests that carry what we signed: the parts `auth.jwt` and `auth.hmac`."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ingest.config.part import Mistake, Part
from ingest.config.values import HeaderName, Secret, Wait, one_line

SIGNED = ("method", "host", "path", "query", "target", "timestamp", "body", "body_sha256")

_BRACES = re.compile(r"\{\{|\{([^{}]*)\}")


def parts(template: str) -> Sequence[str]:
    """Literal, name, literal, name, …, literal. `{{` writes a brace."""
    found, at = [""], 0
    for match in _BRACES.finditer(template):
        found[-1] += template[at : match.start()]
        at = match.end()
        if match[1] is None:
            found[-1] += "{"
        else:
            found += [match[1], ""]
    found[-1] += template[at:]
    return found


class Jwt(Part):
    """A token that we sign ourselves (RFC 7519), sent as `Authorization: Bearer …`."""

    key: Secret
    """The private key as PEM, without a passphrase; for HS256 the shared secret."""
    alg: Literal["RS256", "ES256", "EdDSA", "HS256"] = "RS256"
    claims: Mapping[str, Any] = Field({})
    """What it says: iss, sub, aud and others. `iat` and `exp` are set."""
    kid: str | None = None
    """The name of the key, for its header."""
    ttl: Wait = 600.0
    """From `iat` to `exp`."""

    def mistakes(self) -> Iterable[Mistake]:
        for name in ("iat", "exp", "nbf"):
            if name in self.claims:
                yield f"claims.{name}", f"`{name}` is set when a token is made, by `ttl`"


class Hmac(Part):
    """A signature of every request, with a shared secret."""

    key: Secret
    algorithm: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    sign: str
    """What is signed, with {method}, {host}, {path}, {query}, {target}, {timestamp}, {body} and {body_sha256} in it."""
    encoding: Literal["hex", "base64"] = "hex"
    header: HeaderName
    """The header that takes the signature."""
    value: Annotated[str, AfterValidator(one_line)] = "{signature}"
    """What that header holds: `HMAC key-id:{signature}`."""
    timestamp: HeaderName = "X-Timestamp"
    """The header that takes the time, where `{timestamp}` is signed."""
    timestamp_format: Literal["unix", "unix_ms", "rfc3339"] = "unix"

    def mistakes(self) -> Iterable[Mistake]:
        names = parts(self.sign)[1::2]
        for name in names:
            if name not in SIGNED:
                close = difflib.get_close_matches(name, SIGNED, n=1, cutoff=0.6)
                meant = f"did you mean `{{{close[0]}}}`" if close else f"known here: {', '.join(SIGNED)}"
                yield "sign", f"`{{{name}}}` is nothing that can be signed; {meant} (`{{{{` writes a brace)"
        if not names:
            yield (
                "sign",
                "`sign` signs the same for every request: write what is signed, such as {method}, {path} and {body}",
            )
        if "{signature}" not in self.value:
            yield "value", "`value` is what the header holds, with `{signature}` in it"
        if "timestamp" not in names and {"timestamp", "timestamp_format"} & self.model_fields_set:
            yield "sign", "the time is sent where it is signed: write {timestamp} into it"
