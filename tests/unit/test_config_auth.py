"""What is wrong with an `auth` is said with its place, before anything is asked for."""

import pytest

from ingest.config.loader import parse
from ingest.config.references import resolve
from ingest.errors import ConfigError
from ingest.redaction import Redactor
from tests.unit.test_config_loader import mistakes, stream
from tests.unit.test_config_mistakes import one

BY_REFERENCE = "secrets only by reference: write ${env:NAME} or ${file:/run/secrets/name}"
URL = "token_url: https://login.example.com/token"
LOGIN = 'login: {path: /login, json: {user: me, token_type: x, password: "${env:P}"}}'
CLIENT = f'{URL}, client_id: c, client_secret: "${{env:S}}"'


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (f'oauth2: {{{URL}, client_secret: "${{env:S}}"}}', "52: `client_id` is missing"),
        (f"oauth2: {{{URL}, client_id: c, client_secret: s}}", BY_REFERENCE),
        (f"oauth2: {{{CLIENT}, grant: refresh_token, refresh_token: r}}", BY_REFERENCE),
        (f"oauth2: {{{CLIENT}, grant: password}}", "`password` is not one of client_credentials, refresh_token"),
        (f"oauth2: {{{CLIENT}, grant: refresh_token}}", "`refresh_token` is missing: the first one, by reference"),
        (
            f'oauth2: {{{CLIENT}, refresh_token: "${{env:R}}"}}',
            "`refresh_token` means nothing with grant: client_credentials; write grant: refresh_token",
        ),
        (f"oauth2: {{{URL}, client_id: c}}", "`client_secret` is missing: grant: client_credentials needs it"),
        (
            f'oauth2: {{{URL}, client_id: c, grant: refresh_token, refresh_token: "${{env:R}}", send_as: basic}}',
            "`client_secret` is missing: send_as: basic needs it",
        ),
        (f"oauth2: {{{CLIENT}, send_as: header}}", "`header` is not one of body, basic"),
        (f"oauth2: {{{CLIENT}, scopes: read}}", "`scopes` must be a list, not text: write […]"),
        (f"oauth2: {{{CLIENT}, params: {{scope: x}}}}", "`scope` is set by `grant` and its keys"),
        (
            f"oauth2: {{{CLIENT.replace(URL, 'token_url: /token')}}}",
            "`token_url` must be an absolute http or https URL",
        ),
        (f'bearer: "${{env:T}}", oauth2: {{{CLIENT}}}', "name only one of bearer, basic, api_key, oauth2"),
        (f"session: {{{LOGIN}, token: $.t}}", "`send` is missing: where the token goes, such as {header: X-Session}"),
        (f"session: {{{LOGIN}, token: $.t, send: {{}}}}", "name exactly one of header, query, cookie"),
        (f"session: {{{LOGIN}, token: $.t, send: {{header: A, cookie: b}}}}", "name exactly one of header, query"),
        (f"session: {{{LOGIN}, token: $.t, send: {{header: A, value: B}}}}", "with `{token}` in it"),
        (f"session: {{{LOGIN}, token: $.t, send: {{query: a, value: 'x{{token}}'}}}}", "with `{token}` in it"),
        (f'session: {{{LOGIN}, token: "$.a[*]", send: {{header: A}}}}', "reaches several values; one is needed here"),
        ("session: {login: {path: /l, json: {user: me, password: plain}}, token: cookie.sid}", BY_REFERENCE),
        ("session: {login: {path: /l, form: {client_secret: plain}}, token: cookie.sid}", BY_REFERENCE),
        ("session: {login: {path: /l, json: {a: [{apiKey: plain}]}}, token: cookie.sid}", BY_REFERENCE),
        (
            "session: {login: {path: /l, json: {}, form: {}}, token: cookie.sid}",
            "a request has one body; `json` is one",
        ),
        ("session: {login: {path: https://x.example/login}, token: cookie.sid}", "is a whole URL"),
        ("probe: {path: https://x.example/me}", "is a whole URL; write what follows base_url"),
        ("probe: {path: /me, method: DELETE}", "`DELETE` is not one of GET, POST"),
        ("jwt: {key: plain}", BY_REFERENCE),
        ('jwt: {key: "${env:K}", alg: none}', "`none` is not one of RS256, ES256, EdDSA, HS256"),
        ('jwt: {key: "${env:K}", claims: {exp: 5}}', "`exp` is set when a token is made, by `ttl`"),
        ('hmac: {key: "${env:K}", header: X-S}', "`sign` is missing"),
        (
            'hmac: {key: "${env:K}", header: X-S, sign: "{metod}"}',
            "`{metod}` is nothing that can be signed; did you mean `{method}`",
        ),
        ('hmac: {key: "${env:K}", header: X-S, sign: x}', "`sign` signs the same for every request"),
        ('hmac: {key: "${env:K}", header: X-S, sign: "{body}", value: x}', "with `{signature}` in it"),
        (
            'hmac: {key: "${env:K}", header: X-S, sign: "{body}", timestamp: X-T}',
            "the time is sent where it is signed: write {timestamp} into it",
        ),
    ],
)
def test_a_mistake_in_an_auth(keys: str, message: str) -> None:
    assert message in one(f"auth: {{{keys}}}")


def test_a_refresh_token_of_a_public_client_needs_no_client_secret() -> None:
    keys = f'{URL}, client_id: c, grant: refresh_token, refresh_token: "${{env:R}}"'
    assert parse(stream(f"path: /x, records: $, auth: {{oauth2: {{{keys}}}}}"))


def test_a_token_url_is_looked_at_again_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGIN", "login.example.com")
    monkeypatch.setenv("S", "client-secret")
    oauth2 = CLIENT.replace("https://login.example.com", '"${env:LOGIN}"').replace('"/token', '/token"')
    loaded = parse(stream(f"path: /x, records: $, auth: {{oauth2: {{{oauth2}}}}}"))
    with pytest.raises(ConfigError, match=r"ingest\.yaml:6:64: must be an absolute http or https URL"):
        resolve(loaded.config.sources["api"], Redactor(), loaded.within("sources.api"))


def test_a_client_id_and_the_host_of_a_token_url_may_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOGIN": "https://login.example.com", "ID": "client-4711", "S": "client-secret"}.items():
        monkeypatch.setenv(name, value)
    oauth2 = 'token_url: "${env:LOGIN}/token", client_id: "${env:ID}", client_secret: "${env:S}"'
    secrets = Redactor()
    resolve(parse(stream(f"path: /x, records: $, auth: {{oauth2: {{{oauth2}}}}}")).config.sources["api"], secrets)
    assert secrets.scrub("https://login.example.com/token client-4711 client-secret").endswith("token client-4711 ***")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("allow_hosts: files.example.com", "`allow_hosts` must be a list"),
        ("allow_hosts: [https://files.example.com]", "is no host; write HOST, HOST:PORT or *.example.com"),
        ("allow_hosts: [files.example.com/x]", "is no host; write HOST"),
        ("allow_hosts: [me@files.example.com]", "is no host; write HOST"),
        ("allow_hosts: ['*']", "is no host; write HOST"),
        ("allow_hosts: ['*.com']", "is too wide; a wildcard stands before a domain: *.example.com"),
        ("allow_hosts: ['*.192.0.2.1']", "is too wide"),
        ("allow_hosts: [a.*.com]", "is no host; write HOST"),
        ("allow_hosts: [0x7f.1]", "would be read as an IP address; write it as 192.0.2.1"),
        ("allow_hosts: ['2130706433']", "would be read as an IP address"),
        ("allow_hosts: [192.0.2.256]", "would be read as an IP address"),
        ("allow_hosts: ['files.example.com:99999']", "has no port between 1 and 65535"),
        ("allow_hosts: [a.example], auth_hosts: [b.example]", "`b.example` is not in `allow_hosts`"),
        ("allow_hosts: ['*.a.example'], auth_hosts: [a.example]", "`a.example` is not in `allow_hosts`"),
        ("tls: {}", "`tls` is empty: name a file, or leave it out"),
        ("tls: {cert: /c.pem}", "`cert` without `key`: a client's certificate needs both"),
        ("tls: {key: '${file:/k.pem}'}", "must be the path of a PEM file"),
    ],
)
def test_a_mistake_in_where_requests_go(keys: str, message: str) -> None:
    [line] = mistakes(of_source(keys))
    assert line.startswith("ingest.yaml:5:")
    assert message in line


def of_source(keys: str, scheme: str = "https") -> str:
    """A file with one source; its keys stand in line 5."""
    streams = "streams: {a: {path: /x, records: $}}"
    return f"version: 1\nsources:\n  api:\n    {{base_url: {scheme}://api.example.com,\n    {keys},\n    {streams}}}\n"


@pytest.mark.parametrize("host", ["files.example.com", "*.example.com:8443", "bücher.example", "'[2001:db8::1]:8443'"])
def test_a_host_may_be_written_so(host: str) -> None:
    quoted = f"'{host}'" if host.startswith("*") else host
    assert parse(of_source(f"allow_hosts: [{quoted}]")).config.sources["api"].allow_hosts == (host.strip("'"),)


def test_certificates_without_tls_are_a_mistake() -> None:
    [line] = mistakes(of_source("tls: {ca: /ca.pem}", "http"))
    assert "`tls` means nothing: base_url begins with http:, not https:" in line


def test_a_host_that_comes_by_reference_is_looked_at_when_it_is_known_and_may_be_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = parse(of_source('allow_hosts: ["${env:FILES}", "${env:FILES}"]'))
    monkeypatch.setenv("FILES", "files.example.com")
    secrets = Redactor()
    source = resolve(loaded.config.sources["api"], secrets, loaded.within("sources.api"))
    assert source.allow_hosts == ("files.example.com", "files.example.com")
    assert secrets.scrub("files.example.com") == "files.example.com"
    monkeypatch.setenv("FILES", "https://files.example.com")
    with pytest.raises(ConfigError, match=r"ingest\.yaml:5:19: .* is no host") as caught:
        resolve(loaded.config.sources["api"], secrets, loaded.within("sources.api"))
    assert len(str(caught.value).splitlines()) == 2


def test_a_probe_may_stand_alone_and_goes_with_the_way_in_that_it_stands_beside() -> None:
    shared = "auth: {basic: {user: me, password: '${env:P}'}, probe: {path: /me}}, path: /x, records: $"
    own = {"a": "{}", "b": "{auth: {probe: {path: /b}}}", "c": "{auth: {bearer: '${env:T}'}}"}
    streams = ", ".join(f"{name}: {keys}" for name, keys in own.items())
    base = "base_url: https://api.example.com, auth: {probe: {path: /me}}"
    text = f"version: 1\nsources:\n  api: {{{base}, defaults: {{{shared}}}, streams: {{{streams}}}}}\n"
    source = parse(text).config.sources["api"]
    assert source.auth is not None
    assert source.auth.model_fields_set == {"probe"}
    found = [source.streams[name].auth for name in own]
    assert [sorted(auth.model_fields_set) for auth in found if auth] == [
        ["basic", "probe"],
        ["basic", "probe"],
        ["bearer"],
    ]
    assert [auth.probe.path for auth in found if auth and auth.probe] == ["/me", "/b"]
