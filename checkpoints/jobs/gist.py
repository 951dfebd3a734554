"""What an error says in one line. Pure."""

TRACEBACK = ("Traceback ", "…\n")  # how texts begin whose last line says what happened


def gist(error_class: str | None, error: str | None) -> str:
    """`SourceRefused: GET https://…: 401`: of what was kept of an attempt the line that says most."""
    lines = (error or "").strip().splitlines() or [""]
    line = lines[-1] if (error or "").startswith(TRACEBACK) else lines[0]
    return (
        line if not error_class or line.startswith(f"{error_class}:") else f"{error_class}: {line}".removesuffix(": ")
    )
