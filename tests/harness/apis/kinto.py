"""Kinto: JSON records behind basic auth. https://docs.kinto-storage.org

    GET {url}/v1/buckets/shop/collections/orders/records?_limit=50&_sort=last_modified&_since=1796119761946
    {"data": [{"title": …, "amount": 3, "id": "order0000000003", "last_modified": 1796119761959}, …]}

Another page is named by the header `Next-Page`, an absolute URL with an opaque `_token`; the last page has none.
`last_modified` is in milliseconds and no two records have the same; `_since` is exclusive. Only with `_since`, deleted
records are listed too: {"id": …, "last_modified": …, "deleted": true}. `ETag` is the newest `last_modified` in quotes.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.harness import installs
from tests.harness.apis import Record, Served
from tests.harness.processes import free_ports

USER, PASSWORD = "clerk", "opensesame-kinto"
ORDERS = "/v1/buckets/shop/collections/orders"
BATCH = 25  # requests that Kinto takes at once
SETTINGS = """
[server:main]
use = egg:waitress
host = 127.0.0.1
port = {port}
[app:main]
use = egg:kinto
kinto.storage_backend = kinto.core.storage.memory
kinto.permission_backend = kinto.core.permission.memory
kinto.cache_backend = kinto.core.cache.memory
kinto.includes = kinto.plugins.accounts
kinto.account_create_principals = system.Everyone
kinto.bucket_create_principals = system.Authenticated
kinto.userid_hmac_secret = for-tests-only
multiauth.policies = account
multiauth.policy.account.use = kinto.plugins.accounts.AccountsPolicy
[loggers]
keys = root
[handlers]
keys = console
[formatters]
keys =
[logger_root]
level = WARNING
handlers = console
[handler_console]
class = StreamHandler
args = (sys.stderr,)
"""


class Kinto(Served):
    """Made by `start`."""

    def __init__(self, directory: Path, port: int) -> None:
        settings = directory / "kinto.ini"
        settings.write_text(SETTINGS.format(port=port))
        command = [installs.python("kinto"), "start", "--ini", str(settings), "--port", str(port)]
        super().__init__(command, port, directory, ready="/v1/")
        self._written: set[str] = set()
        self.ask("PUT", f"/v1/accounts/{USER}", json={"data": {"password": PASSWORD}})
        self.owner.auth = httpx.BasicAuth(USER, PASSWORD)
        self.ask("PUT", "/v1/buckets/shop")
        self.ask("PUT", ORDERS)

    def make(self, path: str) -> None:
        """A bucket or a collection, where it is not there."""
        if self.owner.get(path).status_code != 200:
            self.ask("PUT", path)

    def put(self, orders: Mapping[str, Record]) -> None:
        self._written.update(orders)
        self._batch([("PUT", id, {"body": {"data": order}}) for id, order in orders.items()])

    def delete(self, ids: Iterable[str]) -> None:
        self._batch([("DELETE", id, {}) for id in ids])

    def held(self) -> dict[str, Record]:
        answers = self._batch([("GET", id, {}) for id in sorted(self._written)])
        found = [answer["body"]["data"] for answer in answers if answer["status"] == 200]
        assert len(found) == int(self.owner.head(f"{ORDERS}/records").headers["total-objects"])
        return {record["id"]: record for record in found}

    def _batch(self, requests: list[tuple[str, str, Record]]) -> list[Any]:
        asked = [{"method": method, "path": f"{ORDERS}/records/{id}", **more} for method, id, more in requests]
        answers: list[Any] = []
        for n in range(0, len(asked), BATCH):
            answers += self.ask("POST", "/v1/batch", json={"requests": asked[n : n + BATCH]})["responses"]
        return answers


def start(directory: Path) -> Kinto:
    return Kinto(directory, free_ports(1)[0])
