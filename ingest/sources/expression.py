"""JMESPath about records: what is true of one."""

from collections.abc import Callable

import msgspec

from ingest.errors import BadRecord
from ingest.sources.slices import built

_PLAIN = msgspec.json.Decoder(float_hook=float)  # fractions are doubles to an expression


def predicate(expression: str, key: str, stage: str) -> Callable[[bytes], bool]:
    """Whether it is true of a record: neither null, false, nor empty; 0 is true. `key`: where it is configured.

    Raises BadRecord where it cannot be answered."""
    import jmespath  # only those who write an expression wait for it
    from jmespath.exceptions import JMESPathError

    compiled = jmespath.compile(expression)

    def holds(record: bytes) -> bool:
        try:
            found = compiled.search(built(_PLAIN, record))
        except (JMESPathError, TypeError, ValueError) as exc:
            reason = " ".join(str(exc).split())
            said = f"`{key}: {expression}` cannot be answered: {reason}"
            raise BadRecord(said, stage=stage, code=f"bad_{key.rpartition('.')[2]}") from exc
        return found is not None and found is not False and found not in ("", [], {})

    return holds
