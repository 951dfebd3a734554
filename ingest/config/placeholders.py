"""Placeholders in requests: `{parent.…}`, `{window.start}`, `{window.end}`, `{cursor}`; every other brace is literal.

Nothing fills them yet, so the loader refuses them by name, and with them whatever looks like one that was misspelt.
`{{` writes a brace.
"""

import difflib
import re

SUBJECTS = ("parent", "window", "cursor")
_NAME = re.compile(r"parent(\.[^{}\s]+)+|window\.(start|end)|cursor")
_BRACES = re.compile(r"\$\{[^}]*\}|\{\{|\{(?P<inside>[^{}]*)\}")


def check(text: str) -> str:
    """`text` as it is. Raises ValueError for a placeholder, or for the near miss of one."""
    for match in _BRACES.finditer(text):
        inside = match["inside"]
        if inside is None:
            continue
        if _NAME.fullmatch(inside):
            raise ValueError(f"`{{{inside}}}` is not supported by this version")
        subject = inside.strip().lower().split(".")[0]
        if close := difflib.get_close_matches(subject, SUBJECTS, n=1, cutoff=0.75):
            meant = {"parent": "{parent.FIELD}", "window": "{window.start} or {window.end}", "cursor": "{cursor}"}[
                close[0]
            ]
            raise ValueError(f"`{{{inside}}}` is no placeholder; did you mean `{meant}`? (`{{{{` writes a brace)")
    return text


def literal(text: str) -> str:
    """The text with `{{` written as a brace; references keep theirs."""
    return _BRACES.sub(lambda match: "{" if match[0] == "{{" else match[0], text)
