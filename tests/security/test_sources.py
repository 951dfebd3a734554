"""APIs that show a certificate and want one of ours: what does not fit is said in words that help, and not retried."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ingest.errors import ConfigError, SourceUnavailable
from tests.e2e.command import Engine, Ingest
from tests.harness.blocking_http import serving
from tests.harness.certificates import Authority, Certificate
from tests.harness.fake_api import FakeApi
from tests.harness.issuer import Issuer
from tests.unit.sources import PAGING, failure, ids, list_all, reply, say

NEXT_URL = PAGING["next_url"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.issue("server", "localhost")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Certificate:
    return authority.issue("client", "client.test")


def context(certificate: Certificate, authority: Authority | None = None, *, must: bool = True) -> ssl.SSLContext:
    """`authority`: who signs the certificates that clients must show, or may."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate.cert, certificate.key)
    if authority is not None:
        made.load_verify_locations(authority.ca)
        made.verify_mode = ssl.CERT_REQUIRED if must else ssl.CERT_OPTIONAL
    return made


def tls(authority: Authority, certificate: Certificate | None = None) -> Mapping[str, Any]:
    files = {"ca": str(authority.ca)}
    if certificate is not None:
        files |= {"cert": str(certificate.cert), "key": str(certificate.key)}
    return {"tls": files}


def page(number: int, following: str | None = None) -> Any:
    link = f', "next": "{following}"' if following else ""
    return reply(f'{{"data":[{{"id":{number}}}]{link}}}')


async def test_an_api_that_wants_a_certificate_gets_ours(
    authority: Authority, server: Certificate, client: Certificate
) -> None:
    async with FakeApi(tls=context(server, authority)) as api:
        say(api, [page(1)])
        assert ids(await list_all(api.url, NEXT_URL, tls(authority, client))) == ["1"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shown", ["none", "a stranger's"])
async def test_a_certificate_that_is_missing_or_not_trusted_is_named(
    authority: Authority, server: Certificate, tmp_path: Path, version: ssl.TLSVersion, shown: str
) -> None:
    stranger = Authority(tmp_path).issue("stranger", "client.test") if shown != "none" else None
    demanding = context(server, authority)
    demanding.maximum_version = version
    with serving(demanding) as port:
        _, error = await failure(f"https://localhost:{port}", {"records": "$"}, tls(authority, stranger))
    assert isinstance(error, ConfigError)
    assert f"GET https://localhost:{port}/events: the server " in str(error)
    assert "`tls.cert` and `tls.key` must name one that it trusts" in str(error)


async def test_an_authority_that_is_not_known_is_named(
    authority: Authority, server: Certificate, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    async with FakeApi(tls=context(server)) as api:
        for above in ({}, tls(other)):
            _, error = await failure(api.url, NEXT_URL, above)
            assert isinstance(error, ConfigError)
            assert "the server's certificate is not accepted: " in str(error)
            assert str(error).endswith("`tls.ca` must name the file with the certificate of who signed it")
        assert api.requests == []


async def test_a_certificate_for_another_host_is_not_accepted(authority: Authority) -> None:
    async with FakeApi(tls=context(authority.issue("elsewhere", "elsewhere.test"))) as api:
        _, error = await failure(api.url, NEXT_URL, tls(authority))
    assert isinstance(error, ConfigError)
    assert "certificate is not valid for 'localhost'; the URL must name the host" in str(error)


async def test_a_certificate_that_has_ended_is_not_accepted(authority: Authority) -> None:
    ended = authority.issue("ended", "localhost", until=datetime.now(UTC) - timedelta(days=1))
    async with FakeApi(tls=context(ended)) as api:
        _, error = await failure(api.url, NEXT_URL, tls(authority))
    assert isinstance(error, ConfigError)
    assert "certificate has expired; whoever runs the server must renew it" in str(error)


async def test_a_port_without_tls_is_named(authority: Authority) -> None:
    with serving() as port:
        _, error = await failure(f"https://localhost:{port}", NEXT_URL, tls(authority))
    assert isinstance(error, ConfigError)
    assert "the server speaks no TLS on this port; write another port, or http://" in str(error)


async def test_an_api_that_is_away_is_no_matter_of_certificates(authority: Authority, server: Certificate) -> None:
    async with FakeApi(tls=context(server)) as gone:
        url = gone.url
    _, error = await failure(url, NEXT_URL, tls(authority))
    assert isinstance(error, SourceUnavailable)


@contextmanager
def noting(certificate: Certificate, authority: Authority) -> Iterator[tuple[ssl.SSLContext, list[bool]]]:
    """A server's context, and for each connection whether the client showed a certificate."""
    shown: list[bool] = []
    made = context(certificate, authority, must=False)

    class Noting(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            shown.append(self.getpeercert() is not None)

    made.sslobject_class = Noting
    yield made, shown


@pytest.mark.parametrize(("auth_hosts", "certified"), [(False, False), (True, True)])
async def test_our_certificate_is_shown_to_those_alone_who_get_credentials(
    authority: Authority, server: Certificate, client: Certificate, auth_hosts: bool, certified: bool
) -> None:
    with noting(server, authority) as (there, shown):
        async with FakeApi(tls=context(server, authority)) as api, FakeApi(tls=there) as other:
            say(api, [page(1, f"{other.url}/events")])
            say(other, [page(2)])
            hosts = [other.url.removeprefix("https://")]
            above = {**tls(authority, client), "allow_hosts": hosts, "auth_hosts": hosts if auth_hosts else []}
            assert ids(await list_all(api.url, NEXT_URL, above)) == ["1", "2"]
    assert shown == [certified]


async def test_a_token_endpoint_elsewhere_gets_our_certificate_and_is_trusted_by_the_same_authority(
    authority: Authority, server: Certificate, client: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "client-secret")
    issuer = Issuer()
    async with FakeApi(tls=context(server, authority)) as login, FakeApi(tls=context(server, authority)) as api:
        login.routes["/token"] = issuer.token
        api.routes["/events"] = issuer.guarded(page(1))
        oauth2 = {"token_url": f"{login.url}/token", "client_id": "client", "client_secret": "${env:SECRET}"}
        above = {**tls(authority, client), "auth": {"oauth2": oauth2}}
        assert ids(await list_all(api.url, NEXT_URL, above)) == ["1"]


@pytest.mark.parametrize("key", ["ca", "cert"])
async def test_a_file_that_does_not_fit_is_said_with_its_place_and_nothing_is_asked(
    tmp_path: Path, authority: Authority, server: Certificate, client: Certificate, key: str
) -> None:
    files = {"ca": authority.ca, "cert": client.cert, "key": client.key, key: tmp_path / "nothing.pem"}
    async with FakeApi(tls=context(server)) as api:
        lines = "".join(f"      {name}: {path}\n" for name, path in files.items())
        text = f"version: 1\nsources:\n  api:\n    base_url: {api.url}\n    tls:\n{lines}"
        (tmp_path / "ingest.yaml").write_text(f"{text}    streams: {{events: {{path: /events, records: $.data}}}}\n")
        ingest = Ingest(tmp_path, Engine("embedded", {}))
        done = await ingest("run", "--once", code=2)
        place = f"ingest.yaml:{6 + list(files).index(key)}:{9 + len(key)}"
        said = f"{place}: the file {tmp_path / 'nothing.pem'} cannot be read"
        assert said in done.err
        checked = await ingest("check")
        assert f"{said}: No such file or directory, and is needed to run `api`" in checked.err
        assert api.requests == []


async def test_a_key_that_signs_nothing_is_said_by_check(tmp_path: Path, authority: Authority) -> None:
    jwt = f'{{key: "${{file:{authority.ca}}}", claims: {{iss: x}}}}'
    streams = f"{{events: {{path: /events, records: $, auth: {{jwt: {jwt}}}}}}}"
    (tmp_path / "ingest.yaml").write_text(
        f"version: 1\nsources:\n  api:\n    base_url: https://api.example.com\n    streams: {streams}\n"
    )
    checked = await Ingest(tmp_path, Engine("embedded", {}))("check")
    assert "ingest.yaml:5:" in checked.err
    assert "`auth.jwt.key` is no private key in a PEM file" in checked.err
    assert checked.err.rstrip().endswith("and is needed to run `api`")
