"""Structured logs on standard error: for people on a terminal, JSON lines elsewhere. No secret passes.

WARN: unexpected, nothing lost. ERROR: data lost, or a person must act. INFO: start, stop, one line per run.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import Processor

from ingest.redaction import Redactor

Format = Literal["auto", "text", "json"]


def configure(redactor: Redactor, *, form: Format = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Once per process, before the first line. `stream`: where lines go, standard error when absent."""
    out = stream or sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - standard error may be closed
    text = form == "text" or (form == "auto" and out.isatty())

    def scrub(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {name: redactor.scrub(value) if isinstance(value, str) else value for name, value in event.items()}

    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty()) if text else structlog.processors.JSONRenderer()
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        scrub,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level.upper()),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    _join_libraries(shared, renderer, out)


def _join_libraries(shared: list[Processor], renderer: Processor, out: TextIO) -> None:
    """What libraries log through the standard library, warnings and worse, comes out in the same form."""
    handler = logging.StreamHandler(out)
    own = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=own, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # They report every broken connection with a traceback; what matters of it reaches us as an error of ours.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("asyncpg").setLevel(logging.ERROR)
