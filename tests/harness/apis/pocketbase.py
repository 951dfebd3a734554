"""PocketBase: rows of its own SQLite file behind tokens. https://pocketbase.io/docs

    GET {url}/api/collections/orders/records?page=1&perPage=50&sort=updated&filter=updated>='2026-12-01 10:09:06.749Z'
    {"items": [{"collectionId": …, "collectionName": "orders", "created": …, "id": "order0000000003", "amount": 3,
                "title": …, "updated": "2026-12-01 10:09:06.749Z"}, …],
     "page": 1, "perPage": 50, "totalItems": 120, "totalPages": 3}

A page after the last is empty. The token of `POST /api/collections/_superusers/auth-with-password` goes into
`Authorization` as it is, without a scheme. Deleted rows leave nothing behind.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from tests.harness import installs
from tests.harness.apis import Record, Served
from tests.harness.processes import free_ports

USER, PASSWORD = "clerk@example.com", "opensesame-pocketbase"
LOGIN = "/api/collections/_superusers/auth-with-password"
ORDERS = "/api/collections/orders/records"
FIELDS: list[Record] = [
    {"name": "title", "type": "text"},
    {"name": "amount", "type": "number"},
    {"name": "created", "type": "autodate", "onCreate": True},
    {"name": "updated", "type": "autodate", "onCreate": True, "onUpdate": True},
]


class PocketBase(Served):
    """Made by `start`."""

    def __init__(self, directory: Path, port: int) -> None:
        program, data = installs.python("pocketbase"), directory / "data"
        installs.run("PocketBase", [program, "superuser", "upsert", USER, PASSWORD, "--dir", str(data)])
        command = [program, "serve", "--http", f"127.0.0.1:{port}", "--dir", str(data)]
        super().__init__(command, port, directory, ready="/api/health")
        self._database = data / "data.db"
        login = {"identity": USER, "password": PASSWORD}
        self.owner.headers["authorization"] = self.ask("POST", LOGIN, json=login)["token"]
        self.ask("POST", "/api/collections", json={"name": "orders", "type": "base", "fields": FIELDS})

    def throttle(self, requests: int) -> None:
        """From here on everybody may list, and who asks more often in a second is sent away with 429."""
        self.ask("PATCH", "/api/collections/orders", json={"listRule": ""})
        rule = {"label": "orders:list", "audience": "@guest", "duration": 1, "maxRequests": requests}
        self.ask("PATCH", "/api/settings", json={"rateLimits": {"enabled": True, "rules": [rule]}})

    def put(self, orders: Mapping[str, Record]) -> None:
        known = self._ids()
        for id, order in orders.items():
            if id in known:
                self.ask("PATCH", f"{ORDERS}/{id}", json=order)
            else:
                self.ask("POST", ORDERS, json={"id": id, **order})

    def delete(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.ask("DELETE", f"{ORDERS}/{id}")

    def held(self) -> dict[str, Record]:
        return {id: self.ask("GET", f"{ORDERS}/{id}") for id in self._ids()}

    def _ids(self) -> set[str]:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            return {id for (id,) in connection.execute("SELECT id FROM orders")}


def start(directory: Path) -> PocketBase:
    return PocketBase(directory, free_ports(1)[0])
