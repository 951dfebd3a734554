"""CouchDB's protocol, as PouchDB's server speaks it, with its feed of changes. https://docs.couchdb.org/en/stable/api

    GET {url}/orders/_changes?since=120&limit=50&include_docs=true
    {"results": [{"id": "order0000000003", "changes": [{"rev": "2-5dcf…"}], "seq": 123,
                  "doc": {"title": …, "_id": "order0000000003", "_rev": "2-5dcf…"}}, …], "last_seq": 170}

A document is in the feed once, where it changed last; a deleted one with "deleted": true. `since` is exclusive. The
feed has no end: asked from its last `last_seq` it answers an empty list and that number again.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.harness import installs
from tests.harness.apis import Record, Served
from tests.harness.processes import free_ports


class Couch(Served):
    """Made by `start`."""

    def __init__(self, directory: Path, port: int) -> None:
        program = installs.node(directory, "couch.mjs") / "couch.mjs"
        super().__init__(["node", str(program), str(port)], port, directory)
        self.ask("PUT", "/orders")

    def put(self, orders: Mapping[str, Record]) -> None:
        revisions = self._revisions()
        docs = [
            {"_id": id, **({"_rev": revisions[id]} if id in revisions else {}), **order} for id, order in orders.items()
        ]
        self._write(docs)

    def delete(self, ids: Iterable[str]) -> None:
        revisions = self._revisions()
        self._write([{"_id": id, "_rev": revisions[id], "_deleted": True} for id in ids])

    def held(self) -> dict[str, Record]:
        """The documents, without what a change has around them."""
        rows = self.ask("GET", "/orders/_all_docs", params={"include_docs": "true"})["rows"]
        return {row["id"]: row["doc"] for row in rows}

    def _revisions(self) -> dict[str, str]:
        return {id: doc["_rev"] for id, doc in self.held().items()}

    def _write(self, docs: list[Record]) -> None:
        answers = self.ask("POST", "/orders/_bulk_docs", json={"docs": docs})
        assert all("error" not in answer for answer in answers), answers


def start(directory: Path) -> Couch:
    return Couch(directory, free_ports(1)[0])
