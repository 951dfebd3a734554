"""`page` and `offset`: we count, and the API says when it is over."""

from collections.abc import Sequence

from msgspec.structs import replace

from ingest.config import model
from ingest.errors import SourceChanged
from ingest.sources.pagination.received import Received
from ingest.sources.pagination.token import Stop, Token
from ingest.sources.placement import Placement, Put


class Counted:
    def __init__(self, config: model.PageNumber | model.Offset) -> None:
        self._config, self._where = config, Placement.of(config)
        self._start = config.start if isinstance(config, model.PageNumber) else 0
        self._by_page = isinstance(config, model.PageNumber)
        self._declared = config.total_pages if isinstance(config, model.PageNumber) else config.total

    def first(self) -> Token:
        return Token(number=self._start)

    def puts(self, token: Token) -> Sequence[Put]:
        place = Put(self._where, token.number or 0)
        if self._config.size_param is None or self._config.size is None:
            return (place,)
        return place, Put(Placement(param=self._config.size_param), self._config.size)

    def after(self, token: Token, received: Received) -> Token | Stop:
        count = len(received.records)
        rows = token.rows + count
        declared = None if self._declared is None else received.count(self._declared)
        total = token.total if declared is None else declared
        moved = token.moved or (token.total is not None and total != token.total)
        if self._config.end == "short" and self._config.size is not None and count < self._config.size:
            return Stop(f"short page ({count} of {self._config.size})")
        done = (token.number or 0) - self._start + 1 if self._by_page else rows
        if self._config.end in ("auto", "total") and declared is not None and not moved and done == total:
            return Stop(f"total reached ({done} of {total})")
        if not count:
            return self._ended("an empty page", done, total)
        number = (token.number or 0) + (1 if self._by_page else count)
        return Token(number=number, rows=rows, total=total, moved=moved)

    def nothing(self, token: Token, n: int) -> Token | Stop:
        done = (token.number or 0) - self._start if self._by_page else token.rows
        return self._ended("no content", done, token.total)

    def behind(self, token: Token) -> Token | Stop:
        step = 1 if self._by_page else self._config.size
        if step is None:
            return Stop("the page was left out, and without `size` nothing says where the next one begins")
        number = (token.number or 0) + step
        return replace(token, number=number, rows=token.rows if self._by_page else number, before=(), back=False)

    def _ended(self, sign: str, done: int, total: int | None) -> Stop:
        """Raises SourceChanged where fewer came than the API declared: no listing is complete that lacks some."""
        if self._config.end in ("auto", "total") and total is not None and done < total:
            raise SourceChanged(
                f"incomplete: {sign} after {done} of {total} declared by {self._declared}; if the API counts what it"
                " does not list, write `paginate: {end: empty}`"
            )
        return Stop(sign.removeprefix("an "))
