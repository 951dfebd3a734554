"""A secret is found in every form in which a library may show it."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.redaction import Redactor

SECRET = 'pa/ss "wörd"+=\\&'


def redactor(*secrets: str) -> Redactor:
    made = Redactor()
    for secret in secrets:
        made.add(secret)
    return made


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET, safe=""),
        quote(SECRET),
        quote_plus(SECRET),
        quote(SECRET, safe="").lower(),
        quote(quote(SECRET, safe=""), safe=""),
        SECRET.encode().decode("latin-1"),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        repr(SECRET)[1:-1],
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    ],
)
def test_a_secret_is_scrubbed_in_this_form(form: str) -> None:
    assert redactor(SECRET).scrub(f"before {form} after") == "before *** after"


@pytest.mark.parametrize("user", ["a", "ab", "abc", "abcd", "someone@example.com"])
def test_a_password_is_scrubbed_inside_basic_credentials(user: str) -> None:
    header = base64.b64encode(f"{user}:correct horse battery".encode()).decode()
    scrubbed = redactor("correct horse battery").scrub(f"Basic {header}")
    rest = scrubbed.removeprefix("Basic ").replace("***", "")
    assert "***" in scrubbed
    assert b"correct" not in base64.b64decode(rest + "=" * (-len(rest) % 4))


def test_the_longest_secret_wins() -> None:
    assert redactor("secret", "secret-and-more").scrub("secret-and-more secret") == "*** ***"


def test_text_without_secrets_comes_back_as_it_is() -> None:
    text = "nothing here"
    assert Redactor().scrub(text) is text
    assert redactor("hidden-value").scrub(text) == text


def test_very_short_secrets_are_left_alone() -> None:
    assert redactor("", "a", "abc").scrub("abc a") == "abc a"
    assert redactor("abcd").scrub("abcd") == "***"


def test_every_line_of_a_secret_is_one() -> None:
    assert redactor("-----BEGIN-----\nMIIEvQ1234").scrub("at line MIIEvQ1234") == "at line ***"


def test_the_log_processor_scrubs_at_every_depth() -> None:
    event = {"event": "GET /?key=hidden-value", "n": 1, "headers": {"a": ["hidden-value", b"hidden-value"]}, "ok": None}
    event["error"] = ValueError("hidden-value")
    assert redactor("hidden-value").processor(None, "info", event) == {
        "event": "GET /?key=***",
        "n": 1,
        "headers": {"a": ["***", b"***"]},
        "ok": None,
        "error": "***",
    }
    assert redactor("hidden-value").processor(None, "info", "a line hidden-value") == "a line ***"
    assert Redactor().processor(None, "info", event) is event


TEXT = st.text(st.characters(exclude_characters="*"), max_size=40)


@given(TEXT.filter(lambda text: len(text) >= 4), TEXT, TEXT)
def test_no_secret_survives_as_it_is(secret: str, before: str, after: str) -> None:
    assert secret not in redactor(secret).scrub(before + secret + after)
