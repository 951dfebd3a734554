"""Tokens that we sign ourselves: JSON Web Tokens (RFC 7519) in compact form (RFC 7515)."""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ingest.config.model import Jwt
from ingest.errors import ConfigError
from ingest.sources.auth.errands import Errands
from ingest.sources.auth.renewed import Token, renew_at

EARLY = 60.0  # seconds before now at which a token begins, as clocks differ; at most half of its life
LEEWAY = 60.0  # seconds before its end at which it is made anew

Sign = Callable[[bytes], bytes]


class Signer:
    """Raises ConfigError for a key that does not fit."""

    def __init__(self, jwt: Jwt, errands: Errands) -> None:
        self._jwt, self._errands = jwt, errands
        self._sign = signing(jwt)

    async def obtain(self, refused: str | None) -> Token:
        clock, ttl = self._errands.transport.clock, self._jwt.ttl
        early = min(EARLY, ttl / 2)
        begins = int(clock.wall() - early)
        header = {"alg": self._jwt.alg, "typ": "JWT"} | ({"kid": self._jwt.kid} if self._jwt.kid else {})
        claims = {**self._jwt.claims, "iat": begins, "exp": begins + int(ttl)}
        signed = f"{_part(header)}.{_part(claims)}"
        text = f"{signed}.{_text(self._sign(signed.encode()))}"
        return Token(text, renew_at(clock.monotonic(), ttl - early, LEEWAY))


def signing(jwt: Jwt) -> Sign:
    """Raises ConfigError for a key that does not fit."""
    if jwt.alg == "HS256":
        return lambda signed: hmac.digest(jwt.key.encode(), signed, hashlib.sha256)
    key = _private_key(jwt.key)
    if jwt.alg == "RS256" and isinstance(key, RSAPrivateKey):
        return lambda signed: key.sign(signed, padding.PKCS1v15(), SHA256())
    if jwt.alg == "ES256" and isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1):
        return lambda signed: _raw(key.sign(signed, ECDSA(SHA256())))
    if jwt.alg == "EdDSA" and isinstance(key, Ed25519PrivateKey):
        return key.sign
    wanted = {"RS256": "an RSA key", "ES256": "a key on the curve P-256", "EdDSA": "an Ed25519 key"}[jwt.alg]
    raise ConfigError(f"`auth.jwt.key` is another kind of key: `alg: {jwt.alg}` needs {wanted}")


def _private_key(text: str) -> Any:
    """A variable of the environment often holds a PEM file with its line ends written as \\n."""
    pem = text if "\n" in text else text.replace("\\n", "\n")
    try:
        return load_pem_private_key(pem.encode(), None)
    except TypeError as exc:
        raise ConfigError("`auth.jwt.key` is encrypted; write it without a passphrase") from exc
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise ConfigError("`auth.jwt.key` is no private key in a PEM file (-----BEGIN PRIVATE KEY-----)") from exc


def _raw(signature: bytes) -> bytes:
    """As RFC 7518, 3.4 wants it: both numbers in 32 bytes each."""
    r, s = decode_dss_signature(signature)
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _part(value: object) -> str:
    return _text(msgspec.json.encode(value))


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")
