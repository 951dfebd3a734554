"""dlt's REST API source, merged by id into DuckDB: `{"url", "ask"}`; the table's rows are in the file `rows`."""

import json
import os
import sys
from typing import Any

from forked import Job, NotOffered, only_write_down_waits, serve

only_write_down_waits()
os.environ.update({"RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "WARNING"})

import dlt  # noqa: E402
import duckdb  # noqa: E402, F401
from dlt.destinations import duckdb as duckdb_destination  # noqa: E402, F401
from dlt.sources.rest_api import rest_api_source  # noqa: E402


def paginator(paging: dict[str, Any]) -> Any:
    style = paging["style"]
    if style == "none":
        return None if paging.get("guess") else "single_page"
    if style == "link":
        return "header_link"
    if style == "next_url":
        return {"type": "json_link", "next_url_path": paging["at"]}
    if style == "cursor":
        if paging["at"].startswith("header."):
            return {"type": "header_cursor", "cursor_key": paging["at"][7:], "cursor_param": paging["param"]}
        at = paging["at"].replace("last.", "data[-1:].")
        more = {"has_more_path": paging["more"]} if paging.get("more") else {}
        place = {"cursor_body_path": paging["body"]} if paging.get("body") else {"cursor_param": paging["param"]}
        return {"type": "cursor", "cursor_path": at, **place, **more}
    if style == "page":
        return {
            "type": "page_number", "base_page": paging["start"], "page_param": paging["param"],
            "total_path": paging.get("total_pages"),
        }  # fmt: skip
    if style != "offset":
        raise NotOffered
    return {
        "type": "offset", "limit": paging["size"], "offset_param": paging["param"],
        "limit_param": paging["size_param"], "total_path": paging.get("total"),
    }  # fmt: skip


def incremental(since: dict[str, Any]) -> dict[str, Any]:
    """`initial_value` is what a first run sends; without one it sends nothing."""
    if since["kind"] == "token":
        raise NotOffered
    first = since.get("first")
    found: dict[str, Any] = {"cursor_path": since["field"], "on_cursor_value_missing": "include"}
    if since.get("param"):
        found["start_param"] = since["param"]
    if first is not None:
        found["initial_value"] = int(first) if since["kind"] == "integer" else first
    if seconds := since["lookback"] or since["lag"] or int(since["exclusive"]):
        found["lag"] = seconds if since["format"] != "%Y-%m-%d" else seconds // 86_400  # its unit follows the data
    if since.get("descending"):
        found["row_order"] = "desc"
    return found


def auth(how: dict[str, Any]) -> Any:
    if "bearer" in how:
        return {"type": "bearer", "token": how["bearer"]}
    if how.get("grant", "") == "refresh_token" or "login" in how or "sign" in how:
        raise NotOffered
    if "token_url" in how:
        return {
            "type": "oauth2_client_credentials", "access_token_url": how["token_url"],
            "client_id": how["client_id"], "client_secret": how["value"],
        }  # fmt: skip
    place = "header" if "header" in how else "query"
    return {"type": "api_key", "name": how[place], "api_key": how["value"], "location": place}


def resource(ask: dict[str, Any]) -> dict[str, Any]:
    paging = ask["paging"]
    if ask["deletes"] == "feed" or ask["rate"] or paging.get("cap") or ask["format"] != "json":
        raise NotOffered
    if ask["conditional"] or ask["job"]:
        raise NotOffered
    params: dict[str, Any] = dict(ask["params"])
    if paging["style"] == "page" and paging.get("size_param"):
        params[paging["size_param"]] = paging["size"]
    endpoint: dict[str, Any] = {"path": ask["path"], "params": params, "data_selector": ask["records"] or "$"}
    rules = [_action(**rule) for rule in ask["errors"]]
    if rules := rules + [_action("skip", status) for status in ask["parent"].get("skip_on", ())]:
        endpoint["response_actions"] = rules
    if ask["parent"]:
        endpoint["path"] = ask["path"].replace("{parent.id}", "{resources.parents.id}")
    if ask["method"] == "POST":
        endpoint |= {"method": "POST", "json": {}}
    if (kind := paginator(paging)) is not None:
        endpoint["paginator"] = kind
    if ask["since"]:
        endpoint["incremental"] = incremental(ask["since"])
    found: dict[str, Any] = {
        "name": "events", "primary_key": "id", "max_table_nesting": 0, "endpoint": endpoint,
        "write_disposition": "replace" if ask["deletes"] == "sweep" else "merge",
    }  # fmt: skip
    if ask["deletes"] == "soft":
        found["columns"] = {"gone": {"hard_delete": True, "data_type": "bool"}}
    if ask["keep"]:
        field, value = ask["keep"]
        found["processing_steps"] = [{"filter": lambda row: row[field] == value}]
    return found


def _action(do: str, status: int = 200, member: str = "") -> dict[str, Any]:
    if do not in ("skip", "end"):
        raise NotOffered
    return {"status_code": status, "action": "ignore", **({"content": f'"{member}"'} if member else {})}


def parents(ask: dict[str, Any]) -> dict[str, Any]:
    endpoint = {
        "path": ask["parent"]["path"], "paginator": paginator(ask["parent"]["paging"]), "data_selector": "data",
    }  # fmt: skip
    return {"name": "parents", "primary_key": "id", "write_disposition": "replace", "endpoint": endpoint}


def work(job: Job) -> int:
    ask = job["ask"]
    if ask["read_timeout"]:
        os.environ["RUNTIME__REQUEST_TIMEOUT"] = str(ask["read_timeout"])
    client: dict[str, Any] = {"base_url": job["url"]}
    if ask["auth"]:
        client["auth"] = auth(ask["auth"])
    pipeline = dlt.pipeline(
        "read", pipelines_dir="pipelines", destination=dlt.destinations.duckdb("rows.duckdb"), dataset_name="api"
    )
    resources = [parents(ask)] if ask["parent"] else []
    source = rest_api_source({"client": client, "resources": [*resources, resource(ask)]})
    try:
        pipeline.run(source)
    finally:
        _write_rows(pipeline)
    return 0


def _write_rows(pipeline: Any) -> None:
    try:
        with pipeline.sql_client() as sql, sql.execute_query("SELECT * FROM events") as found:
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    except Exception as exc:
        print("no rows:", type(exc).__name__, file=sys.stderr)
        rows = []
    with open("rows", "w") as file:
        file.writelines(json.dumps(row, default=str) + "\n" for row in rows)


serve(work)
