"""What a case asks for, in the language of this project's configuration."""

from collections.abc import Mapping
from typing import Any

from tests.conformance.case import REFRESH_TOKEN, TOKEN, Ask, Case, Since

QUICK = {"attempts": 4, "base": "1ms", "cap": "2ms"}
SECRETS = {"TOKEN": TOKEN, "REFRESH_TOKEN": REFRESH_TOKEN}


JOB: dict[str, Any] = {
    "create": {"method": "POST", "json": {}, "id": "$.id"},
    "poll": {"path": "/reports/{job.id}", "status": "$.status", "done": "DONE", "failed": "FAILED", "every": "10ms"},
    "download": {"url": "$.url"},
}
DELETES: dict[str, dict[str, Any]] = {
    "sweep": {"sweep": {}},
    "soft": {"soft": "gone"},
    "feed": {"feed": {"stream": "deleted", "id": "object"}},
}


def of(case: Case, url: str) -> dict[str, Any]:
    ask = case.ask
    source: dict[str, Any] = {"base_url": url, "retry": QUICK}
    if ask.auth:
        source["auth"] = _auth(ask.auth, url)
    if ask.read_timeout:
        source["timeout"] = {"read": f"{round(ask.read_timeout * 1000)}ms"}
    if ask.errors:
        source["errors"] = [_rule(**rule) for rule in ask.errors]
    if ask.parent:
        paging = _paginate(ask.parent["paging"])
        parents = {"path": ask.parent["path"], "records": "$.data", "id": "id", "paginate": paging}
        source["streams"] = {"parents": parents}
    if ask.deletes == "feed":
        told = {"path": "/deleted", "records": "$.data", "id": "id"}
        source["streams"] = {"deleted": {**told, "paginate": _paginate(ask.paging)}}
    if ask.rate:
        source["limits"] = {"rate": f"{ask.rate}/s", "burst": 1}
    source |= case.above
    stream = {"path": ask.path, "records": f"$.{ask.records}" if ask.records else "$", "id": "id"}
    streams = {"events": {**stream, **_stream(ask), **case.keys}}
    return {
        "version": 1,
        "topics": {"partitions": 1},
        "sources": {"api": {**source, "streams": {**source.get("streams", {}), **streams}}},
        "consumers": {"store": {"kind": "store", "topics": ["api.*"]}},
    }


def _stream(ask: Ask) -> dict[str, Any]:
    found: dict[str, Any] = {"paginate": _paginate(ask.paging)}
    if ask.method != "GET" and not ask.job:
        found |= {"method": ask.method, "json": {}}
    if ask.params:
        found["params"] = ask.params
    if ask.since:
        found["incremental"] = _incremental(ask.since)
    if ask.parent:
        found["parent"] = {"stream": "parents", "skip_on": ask.parent.get("skip_on", [])}
    if ask.conditional:
        found["conditional"] = True
    if ask.job:
        found["job"] = JOB
    if ask.deletes:
        found["deletes"] = DELETES[ask.deletes]
    if ask.keep:
        found["transform"] = [{"filter": f"{ask.keep[0]} == '{ask.keep[1]}'"}]
    return found


def _rule(do: str, status: int = 200, member: str = "") -> dict[str, Any]:
    return {"when": {"status": status, **({"has": f"$.{member}"} if member else {})}, "do": do}


def _paginate(paging: Mapping[str, Any]) -> dict[str, Any]:
    plain = ("param", "start", "size", "size_param", "fields")
    found: dict[str, Any] = {"type": paging["style"], **{name: paging[name] for name in plain if name in paging}}
    if "body" in paging:
        found["body"] = f"$.{paging['body']}"
    if "cap" in paging:
        found["listing_cap"] = paging["cap"]
    for name, key in (("at", "from"), ("more", "more"), ("total", "total"), ("total_pages", "total_pages")):
        if paging.get(name):
            rooted = paging[name].startswith(("last.", "header."))
            found[key] = paging[name] if rooted else f"$.{paging[name]}"
    return found


def _incremental(since: Since) -> dict[str, Any]:
    if since.kind == "token":
        return {"type": "token", "from": f"$.{since.field}", "param": since.param}
    kind = "timestamp" if since.kind == "text" else since.kind
    found: dict[str, Any] = {"type": "feed" if since.descending and not since.param else kind, "field": since.field}
    if since.param:
        found["since"] = {"param": since.param, **({"first": since.first} if since.first else {})}
    if since.exclusive:
        found["since"]["is"] = "exclusive"
    if since.until:
        found |= {"until": {"param": since.until}, "until_is": since.until_is, "window": "1d"}
    if kind == "timestamp" and since.format:
        found["format"] = since.format
    if since.lookback:
        found["lookback"] = f"{since.lookback}s"
    if since.lag:
        found["lag"] = f"{since.lag}s"
    if since.ascending:
        found["order"] = "asc"
    if since.timezone:
        found["timezone"] = since.timezone
    return found


def _auth(how: Mapping[str, str], url: str) -> dict[str, Any]:
    if "bearer" in how:
        probe = {"probe": {"path": how["probe"]}} if "probe" in how else {}
        return {"bearer": "${env:TOKEN}", **probe}
    if "token_path" in how:
        found = {"token_url": url + how["token_path"], "grant": how["grant"], "client_id": how["client_id"]}
        if "refresh_token" in how:
            found["refresh_token"] = "${env:REFRESH_TOKEN}"
        return {"oauth2": {**found, "client_secret": "${env:TOKEN}"}}
    if "login_path" in how:
        login = {"path": how["login_path"], "json": {"password": "${env:TOKEN}"}}
        return {"session": {"login": login, "token": "$.token", "send": {"header": how["send"]}}}
    if "sign" in how:
        return {"hmac": {"key": "${env:TOKEN}", "sign": how["sign"], "header": "X-Signature"}}
    place = "header" if "header" in how else "query"
    return {"api_key": {"in": place, "name": how[place], "value": "${env:TOKEN}"}}
