"""The JSON Schema of a stream's records, read from a file of its own beside the configuration."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MAX_BYTES = 4_194_304  # of the file


def validator(path: Path) -> "Validator":
    """Raises ValueError with what is wrong with the file. References lead nowhere but into the file itself."""
    import jsonschema_rs  # takes 20 ms, which only streams with a schema pay

    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ValueError(f"cannot read {path}: {exc.strerror}") from exc
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BYTES:,} bytes")
    try:
        return jsonschema_rs.validator_for(json.loads(content.decode("utf-8-sig")), offline=True)
    except (json.JSONDecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ValueError(f"{path} is no JSON: {exc}") from exc
    except jsonschema_rs.ValidationError as exc:
        at = ".".join(map(str, exc.instance_path))
        raise ValueError(f"{path} is no JSON Schema: {f'{at}: ' if at else ''}{exc.message}") from exc
