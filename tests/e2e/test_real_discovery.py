"""What `ingest discover` proposes for servers that nobody here wrote reads everything that they hold."""

import base64
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.command import Ingest
from tests.e2e.pipeline import EMBEDDED
from tests.harness.apis import Api, couch, json_server, kinto, pocketbase
from tests.harness.apis.orders import orders


class Case(NamedTuple):
    start: Callable[[Path], Api]
    listing: str
    proposed: str


CASES = {
    "Kinto": Case(kinto.start, f"{kinto.ORDERS}/records?_limit=50", "{type: next_url, from: header.Next-Page}"),
    "PocketBase": Case(pocketbase.start, f"{pocketbase.ORDERS}?perPage=50", "{type: page, total_pages: $.totalPages}"),
    "json-server": Case(json_server.start, "/orders?_page=1&_limit=50", "{type: link}"),
    "CouchDB's protocol": Case(
        couch.start, "/orders/_changes?limit=50", "{type: cursor, from: $.last_seq, param: since, end: empty}"
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_what_is_proposed_reads_all_that_a_server_holds(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with closing(case.start(tmp_path)) as api:
        api.put(orders(1, 120))
        if isinstance(api, pocketbase.PocketBase):
            api.throttle(1000)  # open to guests
        credentials = base64.b64encode(f"{kinto.USER}:{kinto.PASSWORD}".encode()).decode()
        ingest = Ingest(tmp_path, EMBEDDED, AUTHORIZATION=f"Basic {credentials}")
        header = ("--header", "Authorization: ${env:AUTHORIZATION}") if name == "Kinto" else ()
        await ingest("discover", f"{api.url}{case.listing}", "--out", "ingest.yaml", *header)
        assert f"paginate: {case.proposed}" in (tmp_path / "ingest.yaml").read_text()
        [run] = (await ingest("run", "--once", "--json")).json
        assert (run["outcome"], run["events"]) == ("complete", 120)
