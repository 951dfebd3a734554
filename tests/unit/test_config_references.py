"""References are resolved in the part that is used, and what they held is a secret before anyone sees it."""

from pathlib import Path

import pytest

from ingest.config.loader import parse
from ingest.config.model import Auth, Source
from ingest.config.references import has_reference, resolve
from ingest.errors import ConfigError
from ingest.redaction import Redactor

FILE = """\
version: 1
sources:
  api:
    base_url: "${env:BASE}/v1/${env:TENANT}"
    headers: {X-Team: "team ${env:TEAM}", X-Brace: "{{${env:TEAM}}"}
    params: {a: ["x", "${env:PARAM}"], n: 5}
    auth:
      basic: {user: "${env:USER_NAME}", password: "${file:SECRETS/password}"}
    streams:
      items: {path: "/items/{{x}", records: $, topic: "{source}.all", auth: {bearer: "${env:OWN:-fallback}"}}
"""
ENVIRONMENT = {
    "BASE": "https://api.example.com",
    "TENANT": "tenant-4711",
    "TEAM": "${env:BASE}{{",
    "PARAM": "param-secret",
    "USER_NAME": "alice-the-user",
}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OWN", raising=False)
    (tmp_path / "password").write_text("from a file\n")
    return FILE.replace("SECRETS", str(tmp_path))


def resolved(text: str, secrets: Redactor) -> Source:
    loaded = parse(text)
    return resolve(loaded.config.sources["api"], secrets, loaded.within("sources.api"))


def test_every_reference_is_replaced_at_any_depth(text: str) -> None:
    source = resolved(text, Redactor())
    assert source.base_url == "https://api.example.com/v1/tenant-4711"
    assert source.params == {"a": ["x", "param-secret"], "n": 5}
    assert source.auth is not None
    assert source.auth.basic is not None
    assert (source.auth.basic.user, source.auth.basic.password) == ("alice-the-user", "from a file")
    assert source.streams["items"].auth == Auth.model_construct(bearer="fallback")
    assert source.streams["items"].topic == "{source}.all"


def test_what_came_by_reference_is_never_expanded_again(text: str) -> None:
    assert resolved(text, Redactor()).headers == {"X-Team": "team ${env:BASE}{{", "X-Brace": "{${env:BASE}{{}"}


def test_two_braces_write_one(text: str) -> None:
    assert resolved(text, Redactor()).streams["items"].path == "/items/{x}"


def test_the_loaded_configuration_keeps_its_references(text: str) -> None:
    loaded = parse(text)
    resolve(loaded.config.sources["api"], Redactor())
    assert has_reference(loaded.config.sources["api"].base_url)


def test_values_are_secrets_and_user_names_hosts_and_defaults_are_not(text: str) -> None:
    secrets = Redactor()
    resolved(text, secrets)
    line = "from a file, param-secret, tenant-4711, alice-the-user, https://api.example.com, fallback"
    assert secrets.scrub(line) == "***, ***, ***, alice-the-user, https://api.example.com, fallback"


def test_everything_that_is_missing_is_named_with_its_place(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARAM")
    monkeypatch.setenv("TENANT", "")
    (Path(text.split("${file:")[1].split("}")[0])).unlink()
    with pytest.raises(ConfigError) as caught:
        resolved(text, Redactor())
    assert str(caught.value).splitlines()[:2] == [
        "ingest.yaml:4:15: the environment variable TENANT is empty",
        "ingest.yaml:6:23: the environment variable PARAM is not set",
    ]
    assert str(caught.value).splitlines()[2].startswith("ingest.yaml:8:51: the file ")
    assert str(caught.value).endswith("cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "is not UTF-8"),
        (b"x" * 70_000, "has more than 65,536 bytes"),
        (b"a\nb", "holds a line break"),
        (b"", "is empty"),
    ],
)
def test_a_file_that_is_no_secret_is_refused_without_being_shown(text: str, content: bytes, message: str) -> None:
    path = Path(text.split("${file:")[1].split("}")[0])
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"the file {path} {message}"):
        resolved(text, Redactor())


def test_a_base_url_is_looked_at_again_once_it_is_known(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE", "api.example.com")
    with pytest.raises(ConfigError, match=r"ingest\.yaml:4:15: must be an absolute http or https URL"):
        resolved(text, Redactor())


def test_a_line_break_in_a_variable_is_refused_without_showing_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAM", "hidden\n")
    with pytest.raises(ConfigError, match="the environment variable PARAM holds a line break") as caught:
        resolved(text, Redactor())
    assert "hidden" not in str(caught.value)
