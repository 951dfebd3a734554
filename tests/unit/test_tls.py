"""Which authorities count, and what a failed handshake means."""

import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingest.tls import tls_context, tls_failure


@pytest.mark.parametrize("folder", [None, "empty"])
def test_a_system_without_authorities_is_given_some(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a small image, where the files are not there."""
    capath = None if folder is None else str(tmp_path)
    paths = SimpleNamespace(cafile=None, capath=capath)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    assert tls_context(None, None, None).cert_store_stats()["x509_ca"] > 50


def test_the_authorities_of_the_system_are_used_where_it_has_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_text("")
    paths = SimpleNamespace(cafile=None, capath=str(tmp_path))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    monkeypatch.setattr("certifi.where", lambda: pytest.fail("not asked"))
    assert tls_context(None, None, None).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("what", [OSError("away"), TimeoutError(), ssl.SSLEOFError(8, "EOF occurred"), ValueError("x")])
def test_what_may_pass_by_itself_is_no_failure_of_tls(what: Exception) -> None:
    outer = RuntimeError("of the client")
    outer.__cause__ = what
    assert tls_failure(outer) is None


def test_a_failure_is_found_however_deep_it_lies() -> None:
    inner = ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:1)")
    inner.reason = "TLSV1_ALERT_UNKNOWN_CA"
    middle, outer = RuntimeError(), RuntimeError()
    middle.__context__, outer.__cause__ = inner, middle
    assert "`tls.cert` and `tls.key` must name one that it trusts" in (tls_failure(outer) or "")
