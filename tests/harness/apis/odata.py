"""OData v4, as SAP's CAP serves it out of a PostgreSQL database, behind basic auth. https://cap.cloud.sap/docs

    GET {url}/odata/v4/shop/Orders?$orderby=modifiedAt,id&$filter=modifiedAt ge 2026-12-01T10:16:09.579Z
    {"@odata.context": "$metadata#Orders",
     "value": [{"id": "order0000000003", "title": …, "amount": 3, "modifiedAt": "2026-12-01T10:16:09.579Z", …}, …],
     "@odata.nextLink": "Orders?$orderby=modifiedAt,id&$filter=…&$skiptoken=…"}

`@odata.nextLink` is relative to the URL that was asked, and absent on the last page. A page has at most 50 rows.
Deleted rows leave nothing behind.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.harness import installs
from tests.harness.apis import Record, Served
from tests.harness.processes import free_ports

USER, PASSWORD = "clerk", "opensesame-odata"
ORDERS = "/odata/v4/shop/Orders"


class OData(Served):
    """Made by `start`."""

    def __init__(self, directory: Path, port: int, database: str) -> None:
        programs = installs.node(directory, "odata") / "node_modules" / ".bin"
        parts = urlsplit(database)
        place = {"host": parts.hostname, "port": parts.port, "database": parts.path.lstrip("/")}
        who = {"user": parts.username, "password": parts.password}
        (directory / ".env").write_text(f"cds.requires.db.credentials={json.dumps({**place, **who})}\n")
        installs.run("CAP's tables", ["node", str(programs / "cds-deploy")], cwd=directory)
        command = ["node", str(programs / "cds-serve"), "--port", str(port)]
        super().__init__(command, port, directory)
        self.owner.auth = httpx.BasicAuth(USER, PASSWORD)
        self._written: set[str] = set()

    def put(self, orders: Mapping[str, Record]) -> None:
        self._written.update(orders)
        for id, order in orders.items():
            self.ask("PUT", f"{ORDERS}('{id}')", json=order)

    def delete(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.ask("DELETE", f"{ORDERS}('{id}')")

    def held(self) -> dict[str, Record]:
        answers = {id: self.owner.get(f"{ORDERS}('{id}')") for id in sorted(self._written)}
        found = {id: answer.json() for id, answer in answers.items() if answer.status_code == 200}
        assert len(found) == int(self.owner.get(f"{ORDERS}/$count").text)
        return {id: {n: v for n, v in record.items() if n != "@odata.context"} for id, record in found.items()}


def start(directory: Path, database: str) -> OData:
    return OData(directory, free_ports(1)[0], database)
