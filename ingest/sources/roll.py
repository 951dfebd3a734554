"""The parents of a round in their order: which of them are done, and where the round goes on after a crash. Pure.

They are done out of turn, as many are listed side by side. What is remembered of that stays small: the page of their
listing that holds the first one that is not done, how many before it in that page are, and those done behind it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice

from msgspec.structs import replace

from ingest.sources.cursor import Round, decode

Changes = Mapping[str, bytes | None]


class _Called:
    """A page of parents."""

    def __init__(self, names: Sequence[str], after: bytes, changes: Changes, last: bool) -> None:
        self.names, self.after, self.changes, self.last = names, after, changes, last
        self.done = 0  # from its start


class Roll:
    """Goes on where the round stands."""

    def __init__(self, round: Round) -> None:
        self._before = round.parents
        self._pages: deque[_Called] = deque()
        self._open: set[str] = set()  # that are not done
        self._beyond: dict[str, None] = dict.fromkeys(round.beyond)  # done behind the first that is not
        self._leading = blake2b(digest_size=8)  # of those done before it in its page
        self._resumed: Round | None = round
        self._settled: dict[str, bytes | None] = {}
        self._ended = round.ended
        self._moved = False

    def call(self, names: Sequence[str], after: bytes, changes: Changes, *, last: bool) -> list[str]:
        """A page of parents, each by its name; `after`: the cursor behind it, saved with `changes` when all are done.
        Returns the names of those that are to be listed; one that comes again meanwhile is not."""
        page = _Called(names, after, changes, last)
        leading = self._done_before(names)
        wanted = [
            name for name in dict.fromkeys(names[leading:]) if name not in self._open and name not in self._beyond
        ]
        self._open.update(wanted)
        self._pages.append(page)
        self._advance()
        return wanted

    def _done_before(self, names: Sequence[str]) -> int:
        """How many at the start of the page were done in an earlier run; none where the page is not what it was, or
        not the one."""
        round = self._resumed
        if round is None or not round.done or _hashed(islice(names, round.done)) != round.ids:
            return 0
        self._resumed = None
        self._beyond.update(dict.fromkeys(names[: round.done]))
        return round.done

    def done(self, name: str) -> None:
        self._open.discard(name)
        self._beyond[name] = None
        self._advance()

    def _advance(self) -> None:
        while self._pages:
            page = self._pages[0]
            while page.done < len(page.names) and (name := page.names[page.done]) not in self._open:
                self._beyond.pop(name, None)
                self._leading.update(_framed(name))
                page.done += 1
            if page.done < len(page.names):
                return
            self._pages.popleft()
            self._before = decode(page.after)
            self._settled.update(page.changes)
            self._ended, self._moved = page.last, True
            self._leading = blake2b(digest_size=8)

    @property
    def ahead(self) -> int:
        """How many are done out of turn."""
        return len(self._beyond)

    def moved(self) -> bool:
        """Whether a page was left behind since this was asked last."""
        moved, self._moved = self._moved, False
        return moved

    def settled(self) -> dict[str, bytes | None]:
        """What is to be saved of pages that have been left behind since this was asked last."""
        settled, self._settled = self._settled, {}
        return settled

    def place(self, round: Round) -> Round:
        """The round as it stands."""
        done = self._pages[0].done if self._pages else 0
        return replace(
            round,
            parents=self._before,
            done=done,
            ids=self._leading.hexdigest() if done else "",
            beyond=tuple(self._beyond),
            ended=self._ended,
        )


def _hashed(names: Iterator[str]) -> str:
    digest = blake2b(digest_size=8)
    for name in names:
        digest.update(_framed(name))
    return digest.hexdigest()


def _framed(name: str) -> bytes:
    raw = name.encode()
    return b"%d:%b" % (len(raw), raw)
