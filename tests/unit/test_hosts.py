"""Requests go where the configuration lets them, and credentials nowhere but where it says so."""

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import httpcore
import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from ingest.config.model import Timeout
from ingest.errors import SourceChanged, SourceRefused
from ingest.redaction import Redactor
from ingest.sources.auth.static import Static
from ingest.sources.exchange import Exchange
from ingest.sources.hosts import Hosts, Standing, origin
from ingest.sources.public import NotPublic, PublicOnly, is_public
from ingest.sources.request import Request as RequestValue
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer
from tests.harness.listings import Request as Asked
from tests.unit.sources import PAGING, failure, ids, list_all, opened, read_until_it_fails, reply, say, targets

NEXT_URL = PAGING["next_url"]
NOBODY = Static({}, {}, ())
HTTPS = "https://api.example.com/v1"


# ---- the rules


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com/other?x=1",
        "HTTPS://API.Example.COM:443/",
        "https://api.example.com:/",
        "https://api.example。com/",  # an ideographic full stop, which the client takes for a dot
    ],
)
def test_an_origin_is_the_same_in_any_spelling(url: str) -> None:
    assert Hosts(HTTPS).standing(url) is Standing.HOME


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com.evil.example/",
        "https://evil.example/api.example.com",
        "https://xapi.example.com/",
        "https://api.example.com./",
        "https://api.example.com:444/",
        "http://api.example.com/",
        "http://api.example.com:443/",
        "https://api.example.com@evil.example/",
        "https://me@api.example.com/",
        "https://me:pw@api.example.com/",
        "https://api.example.com\\@evil.example/",
        "https://api.example.com\\.evil.example/",
        "https://api.example.com%2eevil.example/",
        "https://api.example.com%00.evil.example/",
        "https://api.exam\tple.com/",
        "https://api exam.com/",
        "https://xn--api-.example.com/",
        "https:/api.example.com/",
        "//api.example.com/",
        "ftp://api.example.com/",
        "file:///etc/passwd",
        "https://",
        "https://api.example.com:99999/",
        "https://[::1",
    ],
)
def test_what_only_looks_like_base_url_is_not_asked(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Hosts(HTTPS).standing(url)


@pytest.mark.parametrize(
    ("rule", "url", "allowed"),
    [
        ("files.example.com", "https://files.example.com/a", True),
        ("FILES.example.com", "https://Files.Example.com/a", True),
        ("files.example.com", "https://files.example.com:8443/a", False),
        ("files.example.com", "https://a.files.example.com/", False),
        ("files.example.com", "http://files.example.com/", False),
        ("files.example.com:8443", "https://files.example.com:8443/a", True),
        ("files.example.com:8443", "https://files.example.com/a", False),
        ("*.example.org", "https://a.example.org/", True),
        ("*.example.org", "https://a.b.example.org/", True),
        ("*.example.org", "https://example.org/", False),
        ("*.example.org", "https://aexample.org/", False),
        ("*.example.org", "https://a.example.org.evil.example/", False),
        ("*.example.org", "https://a.example.org:8443/", False),
        ("*.example.org:8443", "https://a.example.org:8443/", True),
        ("bücher.example", "https://xn--bcher-kva.example/", True),
        ("*.bücher.example", "https://a.BÜCHER.example/", True),
        ("192.0.2.7", "https://192.0.2.7/", True),
        ("192.0.2.7", "https://3221225991/", False),
        ("192.0.2.7", "https://0xc0.0.2.7/", False),
        ("[2001:db8::7]:8443", "https://[2001:db8::7]:8443/", True),
        ("[2001:db8::7]", "https://[2001:db8::8]/", False),
    ],
)
def test_a_host_is_asked_that_a_rule_names_and_without_credentials(rule: str, url: str, allowed: bool) -> None:
    if allowed:
        assert Hosts(HTTPS, [rule]).standing(url) is Standing.FOREIGN
        assert Hosts(HTTPS, [rule], [rule]).standing(url) is Standing.TRUSTED
    else:
        with pytest.raises(ValueError, match=r"allow_hosts|never left"):
            Hosts(HTTPS, [rule], [rule]).standing(url)


def test_an_api_in_the_clear_may_send_us_to_a_host_with_tls_and_not_the_other_way_round() -> None:
    hosts = Hosts("http://api.example.com", ["files.example.com"])
    assert hosts.standing("https://files.example.com/") is Standing.FOREIGN
    with pytest.raises(ValueError, match="https is never left"):
        Hosts(HTTPS, ["files.example.com:80"]).standing("http://files.example.com/")


def test_a_host_that_somebody_named_may_lead_anywhere() -> None:
    hosts = Hosts(HTTPS, ["*.example.com", "a.example.com"])
    named = [host for host in ("api.example.com", "a.example.com", "b.example.com") if not hosts.only_by_wildcard(host)]
    assert named == ["api.example.com", "a.example.com"]


# ---- what is asked of them


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "canary-secret")


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


@pytest_asyncio.fixture
async def other() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


KINDS: Mapping[str, Mapping[str, Any]] = {
    "bearer": {"auth": {"bearer": "${env:KEY}"}},
    "basic": {"auth": {"basic": {"user": "me", "password": "${env:KEY}"}}},
    "header": {"auth": {"api_key": {"name": "X-Api-Key", "value": "${env:KEY}"}}},
    "query": {"auth": {"api_key": {"in": "query", "name": "key", "value": "${env:KEY}"}}},
    "cookie": {"auth": {"api_key": {"in": "cookie", "name": "sid", "value": "${env:KEY}"}}},
    "jwt": {"auth": {"jwt": {"key": "${env:KEY}", "alg": "HS256"}}},
    "hmac": {"auth": {"hmac": {"key": "${env:KEY}", "sign": "{path}", "header": "X-Signature"}}},
}
EVERYTHING = {"headers": {"X-Key": "${env:KEY}", "X-Plain": "configured"}, "params": {"token": "${env:KEY}"}}


def address(api: FakeApi) -> str:
    return api.url.removeprefix("http://")


def page(following: str | None, number: int = 1) -> Callable[[Asked], Answer]:
    return reply(json.dumps({"data": [{"id": number}], "next": following}))


@pytest.mark.parametrize("how", ["link", "redirect"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_host_in_allow_hosts_is_asked_and_gets_nothing_of_ours(
    api: FakeApi, other: FakeApi, kind: str, how: str
) -> None:
    there = f"{other.url}/events?page=2&token=canary-secret&sig=a%2Fb"
    say(api, [page(there)] if how == "link" else [page("/events?2"), reply("", 302, location=there)])
    say(other, [page(None, 2)])
    above = {**KINDS[kind], **EVERYTHING, "allow_hosts": [address(other)]}
    assert ids(await list_all(api.url, {**NEXT_URL, "headers": {"Accept": "application/x"}}, above)) == ["1", "2"]
    [asked] = other.requests
    assert asked.target == "/events?page=2&sig=a%2Fb"
    assert dict(asked.headers) == {
        "host": address(other),
        "accept": "application/json",
        "accept-encoding": "gzip",
        "user-agent": asked.headers["user-agent"],
        "connection": "keep-alive",
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_a_host_in_auth_hosts_gets_what_the_api_gets(api: FakeApi, other: FakeApi, kind: str) -> None:
    say(api, [page(f"{other.url}/events")])
    say(other, [page(None, 2)])
    hosts = [address(other)]
    above = {**KINDS[kind], **EVERYTHING, "allow_hosts": hosts, "auth_hosts": hosts}
    assert ids(await list_all(api.url, NEXT_URL, above)) == ["1", "2"]
    [there], [here] = other.requests, api.requests
    changing = ("host", "authorization" if kind == "jwt" else "host")
    assert {k: v for k, v in there.headers.items() if k not in changing} == {
        k: v for k, v in here.headers.items() if k not in changing
    }
    assert there.target == here.target
    assert ("authorization" in there.headers) == ("authorization" in here.headers)


async def test_whoever_gets_no_credentials_cannot_send_us_back_with_them(api: FakeApi, other: FakeApi) -> None:
    say(api, [page(f"{other.url}/events")])
    say(api, [reply('{"error":"who are you"}', 401)], "/account/delete")
    say(other, [reply("", 302, location=f"{api.url}/account/delete?token=canary-secret")])
    above = {**KINDS["bearer"], **EVERYTHING, "allow_hosts": [address(other)]}
    async with opened(api.url, NEXT_URL, above) as source:
        _, error = await read_until_it_fails(source)
    assert isinstance(error, SourceRefused)
    assert targets(api) == ["/events?token=canary-secret", "/account/delete"]
    assert not {"authorization", "x-key"} & set(api.requests[1].headers)


async def test_a_401_of_another_host_renews_nothing(api: FakeApi, other: FakeApi) -> None:
    login = {"path": "/login", "json": {"password": "${env:KEY}"}}
    say(api, [reply('{"token":"session-token"}')], "/login")
    say(api, [page(f"{other.url}/events")])
    say(other, [reply("{}", 401)])
    session = {"session": {"login": login, "token": "$.token", "send": {"header": "X-S"}}}
    _, error = await failure(api.url, NEXT_URL, {"auth": session, "allow_hosts": [address(other)]})
    assert isinstance(error, SourceRefused)
    assert targets(api) == ["/login", "/events"]


@pytest.mark.parametrize("keys", [{"method": "POST"}, {"json": {"key": "${env:KEY}"}}])
async def test_a_configured_body_or_method_does_not_go_to_a_host_without_credentials(
    api: FakeApi, other: FakeApi, keys: Mapping[str, Any]
) -> None:
    say(api, [page(f"{other.url}/events")])
    _, error = await failure(api.url, {**NEXT_URL, **keys}, {"allow_hosts": [address(other)]})
    assert isinstance(error, SourceChanged)
    assert "name it in `auth_hosts`" in str(error)
    assert other.requests == []


async def test_a_host_that_is_not_allowed_is_named_with_what_would_allow_it(api: FakeApi, other: FakeApi) -> None:
    say(api, [page(f"{other.url}/events")])
    _, error = await failure(api.url, NEXT_URL, {"allow_hosts": ["files.example.com"]})
    assert isinstance(error, SourceChanged)
    assert f"{other.url}/events: not {api.url}, nor in `allow_hosts`" in str(error)
    assert other.requests == []


async def test_a_cookie_that_is_set_is_shown_to_nobody(api: FakeApi, other: FakeApi) -> None:
    cookies = "sid=canary-session; Path=/"
    say(
        api,
        [
            reply(json.dumps({"data": [{"id": n}], "next": link}), set_cookie=cookies)
            for n, link in enumerate(["/events?2", f"{other.url}/events"])
        ],
    )
    say(other, [page(None, 3)])
    assert ids(await list_all(api.url, NEXT_URL, {"allow_hosts": [address(other)]})) == ["0", "1", "3"]
    assert not [request for request in (*api.requests, *other.requests) if "cookie" in request.headers]


def answering(base_url: str, *allowed: str, answers: Sequence[httpx.Response]) -> tuple[Exchange, list[str]]:
    """An exchange over no network, and the URLs that are asked."""
    asked: list[str] = []
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return left.pop(0)

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return Exchange(lambda *_: client, Hosts(base_url, allowed), Redactor()), asked


async def test_a_redirect_never_leads_from_https_back_into_the_clear() -> None:
    there, back = (httpx.Response(302, headers={"location": f"{s}://{s}.example.com/"}) for s in ("https", "http"))
    exchange, asked = answering(
        "http://api.example.com", "https.example.com", "http.example.com", answers=[there, back, httpx.Response(200)]
    )
    with pytest.raises(SourceChanged, match="from https to http"):
        await exchange.send(RequestValue("http://api.example.com/"), NOBODY, Timeout(), 1000)
    assert asked == ["http://api.example.com/", "https://https.example.com/"]


async def test_what_credentials_make_of_a_url_is_looked_at_too() -> None:
    class Mistaken(Static):
        async def prepare(self, request: RequestValue) -> RequestValue:
            return replace(request, url="https://evil.example/")

    exchange, asked = answering(HTTPS, answers=[httpx.Response(200)])
    with pytest.raises(SourceChanged, match=r"evil\.example"):
        await exchange.send(RequestValue(HTTPS), Mistaken({}, {}, ()), Timeout(), 1000)
    assert asked == []


async def test_the_proxies_of_the_environment_are_not_used(
    api: FakeApi, other: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, other.url)
    say(api, [page(None)])
    assert ids(await list_all(api.url, NEXT_URL)) == ["1"]
    assert other.requests == []


# ---- where names lead


@pytest.mark.parametrize(
    ("address_", "public"),
    [
        *((text, True) for text in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")),
        *((text, False) for text in ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "0.0.0.0", "224.0.0.1")),
        *((text, False) for text in ("169.254.169.254", "100.100.100.200", "100.64.0.1", "192.0.0.192", "198.18.0.1")),
        *(
            (text, False)
            for text in ("255.255.255.255", "240.0.0.1", "192.0.2.1", "::", "::1", "::127.0.0.1", "fe80::1")
        ),
        *((text, False) for text in ("fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1")),
        *((text, False) for text in ("64:ff9b::7f00:1", "64:ff9b:1::808:808", "2002:7f00:1::", "2001:0:1::1")),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_an_address_is_public_or_it_is_not(address_: str, public: bool) -> None:
    assert is_public(ip_address(address_)) is public


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: Iterable[str]) -> list[str]:
    """Names of example.com mean these addresses, one answer after the other and the last one again and again."""
    asked: list[str] = []
    left = list(answers)
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not name or not name.endswith(".example.com"):
            return real(host, port, *args, **kwargs)
        asked.append(name)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.parametrize("auth_hosts", [[], ["*.example.com:{port}"]])
async def test_a_wildcard_does_not_lead_into_our_network(
    api: FakeApi, other: FakeApi, monkeypatch: pytest.MonkeyPatch, auth_hosts: list[str]
) -> None:
    asked = resolving(monkeypatch, ["127.0.0.1"])
    say(api, [page(f"http://files.example.com:{other.port}/events")])
    above = {"allow_hosts": [f"*.example.com:{other.port}"]}
    above["auth_hosts"] = [host.format(port=other.port) for host in auth_hosts]
    _, error = await failure(api.url, NEXT_URL, above)
    assert isinstance(error, SourceChanged)
    assert "files.example.com leads to 127.0.0.1, which is no public address" in str(error)
    assert (asked, other.requests) == (["files.example.com"], [])


async def test_a_host_that_is_named_may_be_in_our_network(
    api: FakeApi, other: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, ["127.0.0.1"])
    say(api, [page(f"http://files.example.com:{other.port}/events")])
    say(other, [page(None, 2)])
    above = {"allow_hosts": [f"*.example.com:{other.port}", f"files.example.com:{other.port}"]}
    assert ids(await list_all(api.url, NEXT_URL, above)) == ["1", "2"]


class Reached(httpcore.AsyncMockBackend):
    """Keeps the hosts that were connected to."""

    def __init__(self, failing: Iterable[str] = ()) -> None:
        super().__init__([])
        self.hosts: list[str] = []
        self._failing = set(failing)

    async def connect_tcp(self, host: str, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        self.hosts.append(host)
        if host in self._failing:
            raise httpcore.ConnectError("as ordered")
        return await super().connect_tcp(host, *args, **kwargs)


async def test_the_address_that_was_looked_at_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolving(monkeypatch, ["93.184.216.34"], ["127.0.0.1"])
    reached = Reached()
    guard = PublicOnly(lambda host: True, reached)
    await guard.connect_tcp("files.example.com", 443)
    with pytest.raises(NotPublic):
        await guard.connect_tcp("files.example.com", 443)
    assert reached.hosts == ["93.184.216.34"]
    assert len(asked) == 2


async def test_a_second_address_is_tried_and_looked_at_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["93.184.216.34", "2606:4700::1111"], ["93.184.216.34", "::1"])
    reached = Reached(["93.184.216.34"])
    guard = PublicOnly(lambda host: True, reached)
    await guard.connect_tcp("files.example.com", 443)
    assert reached.hosts == ["93.184.216.34", "2606:4700::1111"]
    with pytest.raises(NotPublic):
        await guard.connect_tcp("files.example.com", 443)


@pytest.mark.parametrize("literal", ["127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254"])
async def test_an_address_that_is_written_out_is_looked_at_too(literal: str) -> None:
    with pytest.raises(NotPublic, match="leads to"):
        await PublicOnly(lambda host: True, Reached()).connect_tcp(literal, 80)


def test_an_origin_has_its_port_and_its_root_the_usual_spelling() -> None:
    origins = [origin(url) for url in ("http://A", "https://a:443/", "https://[::1]:8443/x")]
    assert [str(one) for one in origins] == ["http://a:80", "https://a:443", "https://::1:8443"]
    assert [one.root for one in origins] == ["http://a/", "https://a/", "https://[::1]:8443/"]
    assert [Hosts(one.root).standing(one.root + "x") for one in origins] == [Standing.HOME] * 3
