"""Orders as tests write them, and someone who works on them while they are read."""

import random

from tests.harness.apis import Api, Record


def order(n: int, title: str = "") -> Record:
    return {"title": title or f'Nº {n}: "½ \\ ünïcode" \u2028 🚲', "amount": n * 1000}


def named(n: int) -> str:
    return f"order{n:010d}"


def orders(first: int, last: int, title: str = "") -> dict[str, Record]:
    return {named(n): order(n, title) for n in range(first, last + 1)}


class Clerk:
    """Puts `count` orders there, then changes, makes, deletes and brings back one after another, by a seed."""

    def __init__(self, api: Api, count: int, seed: int = 1) -> None:
        self.deleted: set[str] = set()
        self._api = api
        self._random = random.Random(seed)
        self._there = dict.fromkeys(orders(1, count))  # in an order that does not change from run to run
        self._made = count
        api.put(orders(1, count))

    def work(self) -> None:
        what = self._random.random()
        if what < 0.15:
            self._made += 1
            self._put(named(self._made), "new")
        elif what < 0.2 and self.deleted:
            self._put(self._random.choice(sorted(self.deleted)), "there again")
        elif what < 0.8:
            self._put(self._random.choice(list(self._there)), f"changed {what}")
        else:
            id = self._random.choice(list(self._there))
            self._api.delete([id])
            del self._there[id]
            self.deleted.add(id)

    def _put(self, id: str, title: str) -> None:
        self._api.put({id: order(0, title)})
        self._there[id] = None
        self.deleted.discard(id)
