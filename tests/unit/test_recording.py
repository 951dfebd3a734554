"""What is shown and kept of an exchange holds no secret."""

import base64

from ingest.redaction import Redactor
from ingest.sources.exchange import Response
from ingest.sources.recording import shown
from ingest.sources.request import Request


def test_a_body_that_is_no_utf8_is_kept_without_secrets() -> None:
    redactor = Redactor()
    redactor.add("s3cr3t-key")
    sent = Request("GET", "http://api.example.com/events", {}, None)
    body = 'name="Müller";key="s3cr3t-key"'.encode("latin-1")
    kept = shown(sent, Response(200, sent, sent, {}, body, 0.0, 0.0), redactor)["response"]["body_base64"]
    assert base64.b64decode(kept) == 'name="Müller";key="***"'.encode("latin-1")
