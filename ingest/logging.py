"""Structured logs on standard error: for people on a terminal, JSON lines elsewhere. No secret passes.

WARN: unexpected, nothing lost. ERROR: data lost, or a person must act. INFO: start, stop, one line per run.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

from ingest.redaction import Redactor

Format = Literal["auto", "text", "json"]


def configure(redactor: Redactor, *, form: Format = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Once per process, before the first line. `stream`: where lines go, standard error when absent."""
    out = stream or sys.stderr
    text = form == "text" or (form == "auto" and out.isatty())

    def scrub(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {name: redactor.scrub(value) if isinstance(value, str) else value for name, value in event.items()}

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            scrub,
            structlog.dev.ConsoleRenderer(colors=out.isatty()) if text else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level.upper()),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    _quiet_libraries(redactor, out)


def _quiet_libraries(redactor: Redactor, out: TextIO) -> None:
    """Libraries log through the standard library: warnings and worse, through the same redaction."""

    class Scrubbing(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return redactor.scrub(super().format(record))

    handler = logging.StreamHandler(out)
    handler.setFormatter(Scrubbing("%(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # it reports every broken connection as an error with a traceback; what matters of it reaches us as LogUnavailable
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
