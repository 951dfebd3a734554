"""Whether what is published is what its schema says, and what becomes of a record that is not."""

from decimal import Decimal
from pathlib import Path

import msgspec

from ingest.config.record_schema import validator
from ingest.config.records import RecordSchema
from ingest.errors import BadRecord, ConfigError, SourceChanged
from ingest.sources.slices import built

SHOWN = 200  # characters of a message

_EXACT = msgspec.json.Decoder(float_hook=Decimal)


class Conformance:
    """Of one stream. Raises ConfigError when its schema cannot be had."""

    def __init__(self, config: RecordSchema) -> None:
        self._config = config
        try:
            self._validator = validator(Path(config.file))
        except ValueError as exc:
            raise ConfigError(f"schema.file: {exc}") from exc

    def look(self, record: bytes, place: str) -> tuple[BadRecord | None, str | None]:
        """Why the record cannot be published, and what is to be said of one that is published nevertheless.

        `place`: which one it is. Raises SourceChanged where a violation fails the run."""
        violation = self._violation(record)
        if violation is None:
            return None, None
        if self._config.on_violation == "fail":
            raise SourceChanged(f"{place} is not what `schema` says: {violation}")
        if self._config.on_violation == "warn":
            return None, f"{place}: {violation}"
        return BadRecord(f"not what `schema` says: {violation}", stage="validate", code="schema"), None

    def _violation(self, record: bytes) -> str | None:
        """The first one."""
        try:
            value = built(_EXACT, record)
            if self._validator.is_valid(value):
                return None
            error = next(self._validator.iter_errors(value))
        except (ValueError, RecursionError) as exc:  # nested deeper than validation goes, or an endless integer
            return f"it cannot be told: {exc}"
        at = ".".join(map(str, error.instance_path))
        return f"{f'{at}: ' if at else ''}{error.message}"[:SHOWN]

