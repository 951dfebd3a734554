"""Names that no other test uses, on servers that all tests share."""

import secrets


def unique(name: str) -> str:
    """`name` with a suffix of lower-case hex digits; fits topics, consumer groups and databases."""
    return f"{name}-{secrets.token_hex(4)}"
