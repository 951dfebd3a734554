"""What we sign can be checked by whoever knows the key, and is signed anew for every try."""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from ingest.errors import ConfigError
from ingest.redaction import Redactor
from ingest.sources.auth import Credentials
from ingest.sources.auth.keyring import open_keyring
from ingest.sources.clock import Clock
from ingest.sources.request import Request
from ingest.sources.transport import open_transport
from tests.harness import faults
from tests.harness.fake_api import FakeApi, numbered
from tests.unit.sources import PAGING, Timeless, configured, list_all, opened, read

NEXT_URL = PAGING["next_url"]
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P256 = ec.generate_private_key(ec.SECP256R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()
KEYS = {"RS256": RSA, "ES256": P256, "EdDSA": ED25519}
ASKED = Request("http://api.example.com/events?a=1")
NOW = 1_700_000_000


@pytest.fixture(autouse=True)
def parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAMETER", "a-secret-parameter")


def pem(key: Any, form: PrivateFormat = PrivateFormat.PKCS8) -> str:
    return str(key.private_bytes(Encoding.PEM, form, NoEncryption()).decode())


@asynccontextmanager
async def credentials(
    auth: Mapping[str, Any], clock: Clock, redactor: Redactor | None = None
) -> AsyncIterator[Credentials]:
    redactor = redactor or Redactor()
    above = {"auth": auth, "params": {"p": "${env:PARAMETER}"}}
    source, _ = configured(above=above, redactor=redactor)
    async with (
        open_transport(source, redactor, clock) as transport,
        open_keyring("api", source, transport, redactor) as keyring,
    ):
        yield keyring.credentials(source.streams["events"])


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        running.serve("events", numbered(4), page_size=2)
        yield running


# ---- jwt


def decoded(part: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def check(alg: str, token: str) -> tuple[Any, Any]:
    """Its header and claims, once its signature is found to be good."""
    header, claims, signature = token.split(".")
    raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    signed = f"{header}.{claims}".encode()
    if alg == "RS256":
        RSA.public_key().verify(raw, signed, padding.PKCS1v15(), SHA256())
    elif alg == "ES256":
        assert len(raw) == 64
        der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        P256.public_key().verify(der, signed, ec.ECDSA(SHA256()))
    elif alg == "EdDSA":
        ED25519.public_key().verify(raw, signed)
    else:
        assert hmac.digest(b"a-shared-secret", signed, hashlib.sha256) == raw
    return decoded(header), decoded(claims)


def write(path: Path, alg: str) -> Path:
    path.write_text("a-shared-secret\n" if alg == "HS256" else pem(KEYS[alg]))
    return path


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA", "HS256"])
async def test_a_token_that_we_sign_says_who_we_are_and_until_when(alg: str, tmp_path: Path) -> None:
    key = f"${{file:{write(tmp_path / 'key.pem', alg)}}}"
    jwt = {"key": key, "alg": alg, "claims": {"iss": "4711", "aud": ["a", "b"], "n": 1.5}, "kid": "key-1"}
    time = Timeless(NOW)
    async with credentials({"jwt": jwt}, time.clock) as ours:
        sent = await ours.prepare(ASKED)
    kind, token = sent.headers["authorization"].split(" ")
    header, claims = check(alg, token)
    assert (kind, header) == ("Bearer", {"alg": alg, "typ": "JWT", "kid": "key-1"})
    assert claims == {"iss": "4711", "aud": ["a", "b"], "n": 1.5, "iat": NOW - 60, "exp": NOW + 540}


@pytest.mark.parametrize(("ttl", "begins", "lasts"), [("10m", 60, 480), ("2m", 60, 30), ("10s", 5, 2.5)])
async def test_a_token_that_we_sign_is_made_anew_before_it_ends(
    ttl: str, begins: int, lasts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "a-shared-secret")
    time = Timeless(NOW)
    async with credentials({"jwt": {"key": "${env:KEY}", "alg": "HS256", "ttl": ttl}}, time.clock) as ours:
        first = (await ours.prepare(ASKED)).headers["authorization"]
        assert check("HS256", first.split(" ")[1])[1]["iat"] == NOW - begins
        time.hands = lasts - 0.1
        assert (await ours.prepare(ASKED)).headers["authorization"] == first
        time.hands = lasts + 1
        assert (await ours.prepare(ASKED)).headers["authorization"] != first


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
async def test_a_key_may_stand_in_a_variable_with_its_line_ends_written_out(
    form: PrivateFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", pem(RSA, form).replace("\n", "\\n"))
    async with credentials({"jwt": {"key": "${env:KEY}"}}, Timeless().clock) as ours:
        check("RS256", (await ours.prepare(ASKED)).headers["authorization"].split(" ")[1])


@pytest.mark.parametrize(
    ("alg", "content", "message"),
    [
        ("RS256", "no key at all", "`auth.jwt.key` is no private key in a PEM file"),
        ("RS256", pem(P256), "`alg: RS256` needs an RSA key"),
        ("ES256", pem(ec.generate_private_key(ec.SECP384R1())), "`alg: ES256` needs a key on the curve P-256"),
        ("EdDSA", pem(RSA), "`alg: EdDSA` needs an Ed25519 key"),
        (
            "RS256",
            RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")).decode(),
            "`auth.jwt.key` is encrypted; write it without a passphrase",
        ),
    ],
)
async def test_a_key_that_does_not_fit_is_said_before_anything_is_asked(
    alg: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_text(content)
    jwt = {"key": f"${{file:{tmp_path / 'key.pem'}}}", "alg": alg}
    with pytest.raises(ConfigError) as caught:
        async with opened("http://api.example.com", {}, {"auth": {"jwt": jwt}}):
            pass
    assert str(caught.value).startswith("ingest.yaml:7:9: ")
    assert message in str(caught.value)


async def test_a_signed_token_and_every_line_of_its_key_are_secrets(tmp_path: Path) -> None:
    redactor = Redactor()
    key = f"${{file:{write(tmp_path / 'key.pem', 'RS256')}}}"
    async with credentials({"jwt": {"key": key}}, Timeless().clock, redactor) as ours:
        shown = (await ours.prepare(ASKED)).headers["authorization"]
    assert redactor.scrub(shown) == "Bearer ***"
    lines = pem(RSA).splitlines()
    assert {redactor.scrub(line) for line in lines[1:-1]} == {"***"}
    assert redactor.scrub(lines[0]) == lines[0]


# ---- hmac


def hmac_auth(**keys: Any) -> Mapping[str, Any]:
    return {"hmac": {"key": "${env:KEY}", "header": "X-Signature", **keys}}


@pytest.mark.parametrize(
    ("keys", "header"),
    [  # RFC 4231, 4.3, and RFC 2202, 3, test case 2
        ({}, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        ({"algorithm": "sha1"}, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
        ({"encoding": "base64"}, "W9zBRr9gdU5qBCQmCJV1x1oAPwidJzmDnexYuWTsOEM="),
        ({"value": "HMAC me:{signature}"}, "HMAC me:5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
    ],
)
async def test_a_signature_is_what_the_standard_says(
    keys: Mapping[str, Any], header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "Jefe")
    async with credentials(hmac_auth(sign="{body}", **keys), Timeless().clock) as ours:
        sent = await ours.prepare(Request("http://h/", "POST", body=b"what do ya want for nothing?"))
    assert sent.headers == {"x-signature": header}


@pytest.mark.parametrize(
    ("format_", "shown"),
    [("unix", "1700000000"), ("unix_ms", "1700000000250"), ("rfc3339", "2023-11-14T22:13:20Z")],
)
async def test_what_is_signed_is_what_goes_out(format_: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a-shared-secret")
    sign = "{method}\n{host}\n{path}\n{query}\n{target}\n{timestamp}\n{{body_sha256}={body_sha256}"
    auth = hmac_auth(sign=sign, timestamp="X-Time", timestamp_format=format_, value="t={timestamp},v1={signature}")
    async with credentials(auth, Timeless(NOW + 0.25).clock) as ours:
        sent = await ours.prepare(Request("http://api.example.com:8080/ä b?q=1%2F2", "POST", body=b"{}"))
    path, query = "/%C3%A4%20b", "q=1%2F2&p=a-secret-parameter"
    body = hashlib.sha256(b"{}").hexdigest()
    lines = ["POST", "api.example.com:8080", path, query, f"{path}?{query}", shown, f"{{body_sha256}}={body}"]
    signature = hmac.digest(b"a-shared-secret", "\n".join(lines).encode(), hashlib.sha256).hex()
    assert sent.headers == {"x-time": shown, "x-signature": f"t={shown},v1={signature}"}


async def test_every_try_is_signed_anew(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a-shared-secret")
    api.misbehave([faults.status(503, retry_after="9")])
    above = {"auth": hmac_auth(sign="{timestamp}{target}")}
    async with opened(api.url, NEXT_URL, above, clock=Timeless(NOW).clock) as source:
        await read(source)
    times = [int(request.headers["x-timestamp"]) for request in api.requests]
    assert [times[0], times[1] >= NOW + 9] == [NOW, True]
    for request in api.requests:
        signed = f"{request.headers['x-timestamp']}{request.target}".encode()
        assert request.headers["x-signature"] == hmac.digest(b"a-shared-secret", signed, hashlib.sha256).hex()


async def test_a_signature_without_a_time_sends_none(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a-shared-secret")
    await list_all(api.url, NEXT_URL, {"auth": hmac_auth(sign="{method}{path}")})
    assert "x-timestamp" not in api.requests[0].headers
