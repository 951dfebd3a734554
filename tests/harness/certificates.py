"""Certificates and signed tokens of the tests' own authority, as PEM files.

Keys are PKCS #8, the only form that Kafka's PEM stores take.
"""

import json
import time
from base64 import urlsafe_b64encode
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class Certificate(NamedTuple):
    cert: Path  # with its chain
    key: Path
    both: Path  # key and chain in one file, as Kafka's keystore wants them


class Authority:
    """`ca` is the file that clients trust."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str, until: datetime | None = None) -> Certificate:
        """For these host names; `name` is the file's and the subject's."""
        issued = self._authority.issue_cert(*hosts, common_name=name, not_after=until)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        found = Certificate(*(self._directory / f"{name}.{kind}.pem" for kind in ("cert", "key", "both")))
        found.cert.write_bytes(chain)
        found.key.write_bytes(key)
        found.both.write_bytes(key + chain)
        return found


class Tokens:
    """An issuer of access tokens (JWT, RS256). `jwks` is the file with its public key."""

    def __init__(self, directory: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        numbers = self._key.public_key().public_numbers()
        public = {"kty": "RSA", "kid": "test", "alg": "RS256", "use": "sig"}
        public |= {"n": _number(numbers.n), "e": _number(numbers.e)}
        self.jwks = directory / "jwks.json"
        self.jwks.write_text(json.dumps({"keys": [public]}))

    def token(self, subject: str, *, seconds: float = 3600.0) -> str:
        """One that is good for so long; expired where `seconds` is negative."""
        now = int(time.time())
        claims = {"sub": subject, "iss": "test", "aud": "kafka", "iat": now - 600, "exp": now + int(seconds)}
        signed = f"{_json({'alg': 'RS256', 'kid': 'test', 'typ': 'JWT'})}.{_json(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_text(signature)}"


def _json(value: Any) -> str:
    return _text(json.dumps(value).encode())


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")
