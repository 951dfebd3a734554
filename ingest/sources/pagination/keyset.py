"""`keyset`: the next page begins behind the last row, told by a few of its fields.

Where the API reads them as included, each page begins with that row, and the last page holds nothing else.
"""

from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

from ingest.config import model
from ingest.errors import SourceChanged
from ingest.paths import JsonPath, Root, parse
from ingest.sources.pagination.received import Received
from ingest.sources.pagination.token import LEFT_OUT, Stop, Token
from ingest.sources.placement import Placement, Put


class Keyset:
    def __init__(self, config: model.Keyset) -> None:
        self._config = config
        self._fields = [parse(f"last.{path.removeprefix('$.')}", roots=(Root.LAST,)) for path in config.fields]
        self._params = [Placement(param=name) for name in config.fields.values()]

    @property
    def names(self) -> str:
        """What its keys are, for the saved cursor."""
        return f"keys {', '.join(self._config.fields)}"

    def leads_with(self, field: JsonPath) -> bool:
        """Whether rows are listed in the order of the field."""
        return self._fields[0].steps == field.steps

    def first(self) -> Token:
        return Token()

    def puts(self, token: Token) -> Sequence[Put]:
        keys = [Put(where, key) for where, key in zip(self._params, token.keys, strict=False)]
        if self._config.size_param is None or self._config.size is None:
            return keys
        return [*keys, Put(Placement(param=self._config.size_param), self._config.size)]

    def after(self, token: Token, received: Received) -> Token | Stop:
        count, size = len(received.records), self._config.size
        if self._config.end == "short" and size is not None and count < size:
            return Stop(f"short page ({count} of {size})")
        if not count:
            return Stop("empty page")
        keys = self.keys(received)
        if size is not None and self._asked(received.url) == keys:
            return self._stuck(keys, count, size)
        return Token(keys=keys, rows=token.rows + count)

    def keys(self, received: Received) -> tuple[str, ...]:
        """Of the last row. Raises SourceChanged where one is missing."""
        found = [received.find(path) for path in self._fields]
        keys = tuple(key for key in found if key is not None)
        if len(keys) < len(found):
            missing = self._fields[found.index(None)]
            raise SourceChanged(f"the last row has no `{missing}`: no next page can be asked for")
        return keys

    def _asked(self, url: str) -> tuple[str, ...]:
        """Where the page that came began: behind the last row of the one before, or at the lower bound of the run."""
        query = parse_qs(urlsplit(url).query, keep_blank_values=True)
        return tuple(value for name in self._config.fields.values() for value in query.get(name, ()))

    def _stuck(self, keys: tuple[str, ...], count: int, size: int) -> Stop:
        """The last row is where the page began."""
        place = ", ".join(f"{name} {key}" for name, key in zip(self._config.fields, keys, strict=True))
        if count < size:
            return Stop(f"nothing behind {place}")
        raise SourceChanged(
            f"the listing stands still at {place}: a page of {count} rows holds nothing behind it; raise `size`, or add"
            f" a field that tells these rows apart (if the API knows {', '.join(self._config.fields.values())} at all)"
        )

    def nothing(self, token: Token, n: int) -> Stop:
        return Stop("no content")

    def behind(self, token: Token) -> Stop:
        return Stop(LEFT_OUT)
