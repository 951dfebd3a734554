"""What a run and a check say to write, where rows may slip by, is accepted, and then none does."""

import json
from collections.abc import AsyncIterator
from operator import itemgetter
from typing import Any

import pytest
import pytest_asyncio
from ruamel.yaml import YAML

from ingest.config.slipping import remedy
from tests.harness.fake_api import FakeApi
from tests.harness.listings import Answer, Request
from tests.unit.sources import Watching, configured, ids, opened, read, reply

BY_TIME: dict[str, Any] = {"type": "timestamp", "field": "at", "since": {"param": "since"}, "order": "asc"}
IN_SECONDS = {**BY_TIME, "format": "unix"}
SEQUENCE = {**BY_TIME, "type": "integer", "field": "seq", "since": {"param": "since_seq"}}
PAGE: dict[str, Any] = {"type": "page", "size_param": "per_page", "size": 3}
OFFSET: dict[str, Any] = {"type": "offset", "size_param": "per_page", "size": 3}
IN_PARAMS = {"params": {"per_page": 3}}


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as running:
        yield running


def changing(api: FakeApi) -> None:
    """Nine rows in the order of their changes. While they are listed, the first one changes: all others move up."""
    rows = [{"id": n, "seq": n, "at": f"2024-01-01T00:00:{n:02}Z"} for n in range(1, 10)]

    def answer(request: Request) -> Answer:
        query, size = request.query, 3
        since, seq = query.get("since", ""), int(query.get("since_seq", "0"))
        if since.isdigit():
            since = f"2024-01-01T00:00:{int(since) % 60:02}Z"
        wanted = [row for row in sorted(rows, key=itemgetter("seq")) if str(row["at"]) >= since and row["seq"] >= seq]  # type: ignore[operator]
        first = int(query["offset"]) if "offset" in query else (int(query.get("page", "1")) - 1) * size
        body = json.dumps({"data": wanted[first : first + size]})
        if len(api.requests) == 1:
            rows[0] |= {"seq": 11, "at": "2024-01-01T00:00:11Z"}
        turn = {**query, "page": str(int(query.get("page", "1")) + 1)}
        link = f'</events?{"&".join(f"{k}={v}" for k, v in turn.items())}>; rel="next"'
        return reply(body, link=link if len(wanted) > first + size else "")(request)

    api.routes["/events"] = answer


def written(said: str, paginate: Any) -> Any:
    """`paginate` as it is said to be."""
    keys = YAML(typ="safe", pure=True).load("{" + said.split("; ")[-1].partition("`")[2].partition("`")[0] + "}")
    before = {"type": paginate} if isinstance(paginate, str) else paginate
    return keys.get("paginate", {**before, **keys})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"paginate": PAGE, "incremental": BY_TIME}, "{at: since}, size_param: per_page, size: 3}`"),
        ({"paginate": "link", "incremental": BY_TIME, **IN_PARAMS}, "{at: since}, size_param: per_page, size: 3}`"),
        ({"paginate": PAGE, "incremental": SEQUENCE}, "{seq: since_seq}, size_param: per_page, size: 3}`"),
        ({"paginate": PAGE, "incremental": IN_SECONDS}, "add `listing_cap: 3` to `paginate`, as many as a page has"),
        ({"paginate": "link", "incremental": IN_SECONDS, **IN_PARAMS}, "add `listing_cap: 3` to `paginate`"),
        (
            {
                "paginate": PAGE,
                "params": {"since": "{cursor}"},
                "incremental": {**BY_TIME, "since": {"first": "2024-01-01"}},
            },
            "add `listing_cap: 3` to `paginate`",
        ),
        (
            {"paginate": "page", "incremental": IN_SECONDS, **IN_PARAMS},
            "`size_param: per_page, size: 3, listing_cap: 3`",
        ),
        ({"paginate": OFFSET, "incremental": BY_TIME}, "add `overlap: 2` to `paginate`"),
    ],
)
async def test_what_is_said_to_be_written_keeps_rows_from_slipping(
    api: FakeApi, keys: dict[str, Any], said: str
) -> None:
    changing(api)
    watch = Watching()
    async with opened(api.url, keys) as source:
        pages = await read(source, watch=watch)
    assert "4" not in ids(pages)  # it slipped by
    [notice] = [one for one in watch.notices if one.kind == "slipping"]
    assert said in notice.message
    api.requests.clear()
    changing(api)
    watch = Watching()
    async with opened(api.url, {**keys, "paginate": written(notice.message, keys["paginate"])}) as source:
        pages = await read(source, watch=watch)
    assert set(ids(pages)) == {str(n) for n in range(1, 10)}
    assert "slipping" not in [one.kind for one in watch.notices]


@pytest.mark.parametrize("incremental", [{"order": "none"}, {"type": "feed", "since": None}])
def test_where_nothing_is_in_ascending_order_the_order_comes_first(incremental: dict[str, Any]) -> None:
    wanted = {key: value for key, value in {**BY_TIME, **incremental, "order": "none"}.items() if value is not None}
    said = remedy(configured(keys={"paginate": PAGE, "incremental": wanted})[1])
    assert said.startswith("where the API can list by `at`, oldest first" if "since" in wanted else "see `keyset`")
