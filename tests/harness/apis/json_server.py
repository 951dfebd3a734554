"""json-server: the lists of one JSON file. https://github.com/typicode/json-server/tree/v0

    GET {url}/orders?_page=2&_limit=50&_sort=revision&revision_gte=17
    [
      {
        "id": "order0000000003", …

`_page` comes with a Link header (first, prev, next, last), `_start` without; `X-Total-Count` counts what fits the
filter. Its JSON is spread over lines. It keeps no times: `revision` counts the writes here.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from tests.harness import installs
from tests.harness.apis import Record, Served
from tests.harness.processes import free_ports


class JsonServer(Served):
    """Made by `start`."""

    def __init__(self, directory: Path, port: int) -> None:
        file = directory / "db.json"
        file.write_text('{"orders": []}')
        self._revisions = count(1)
        program = installs.node(directory) / "node_modules" / "json-server" / "lib" / "cli" / "bin.js"
        command = ["node", str(program), "--port", str(port), "--host", "127.0.0.1", "--quiet", str(file)]
        super().__init__(command, port, directory, ready="/orders")

    def put(self, orders: Mapping[str, Record]) -> None:
        known = self.held()
        for id, order in orders.items():
            body = {"id": id, **order, "revision": next(self._revisions)}
            self.ask(*("PUT", f"/orders/{id}") if id in known else ("POST", "/orders"), json=body)

    def delete(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.ask("DELETE", f"/orders/{id}")

    def held(self) -> dict[str, Record]:
        return {order["id"]: order for order in self.ask("GET", "/db")["orders"]}


def start(directory: Path) -> JsonServer:
    return JsonServer(directory, free_ports(1)[0])
