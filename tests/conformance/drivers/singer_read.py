"""A tap of the Singer SDK, written with what the SDK ships: `{"url", "ask"}`; its records are added to `rows`."""

import json
import logging
import sys
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from forked import Job, NotOffered, member, only_write_down_waits, rows, serve

only_write_down_waits()

from singer_sdk import RESTStream, Tap  # noqa: E402
from singer_sdk import typing as th  # noqa: E402
from singer_sdk.authenticators import APIKeyAuthenticator, BearerTokenAuthenticator, OAuthAuthenticator  # noqa: E402
from singer_sdk.pagination import (  # noqa: E402
    BaseHATEOASPaginator,
    BaseOffsetPaginator,
    BasePageNumberPaginator,
    HeaderLinkPaginator,
    JSONPathPaginator,
    SimpleHeaderPaginator,
    SinglePagePaginator,
)


def paginator(paging: dict[str, Any]) -> Any:
    style = paging["style"]
    if style == "link":
        return HeaderLinkPaginator()
    if style == "next_url":

        class NextUrl(BaseHATEOASPaginator):
            def get_next_url(self, response: Any) -> str | None:
                return response.json().get(paging["at"])

        return NextUrl()
    if style == "cursor" and paging["at"].startswith("header."):
        return SimpleHeaderPaginator(paging["at"][7:])
    if style == "cursor":

        class Cursor(JSONPathPaginator):
            def has_more(self, response: Any) -> bool:
                return bool(response.json().get(paging["more"])) if paging.get("more") else True

        return Cursor("$." + paging["at"].replace("last.", "data[-1:]."))
    if style == "page":
        return BasePageNumberPaginator(paging["start"])
    if style == "offset":
        return BaseOffsetPaginator(0, paging["size"])
    if style != "none":
        raise NotOffered
    return SinglePagePaginator()


class Events(RESTStream[Any]):
    name = "events"
    primary_keys = ("id",)
    ask: dict[str, Any]
    base: str

    @property
    def url_base(self) -> str:
        return self.base

    @property
    def timeout(self) -> float:
        return self.ask["read_timeout"] or 300

    @property
    def authenticator(self) -> Any:
        how = self.ask["auth"]
        if not how:
            return super().authenticator
        if "bearer" in how:
            return BearerTokenAuthenticator(token=how["bearer"])
        if "login" in how or "sign" in how:
            raise NotOffered
        if "token_url" in how:
            return self.oauth
        place = "header" if "header" in how else "params"
        return APIKeyAuthenticator(key=how.get("header") or how["query"], value=how["value"], location=place)

    @cached_property
    def oauth(self) -> Any:
        how = self.ask["auth"]
        body = {"grant_type": how["grant"], "client_id": how["client_id"], "client_secret": how["value"]}
        if how["grant"] == "refresh_token":
            body["refresh_token"] = how["refresh_token"]

        class Client(OAuthAuthenticator):
            @property
            def oauth_request_body(self) -> dict[str, Any]:
                return body

        return Client(auth_endpoint=how["token_url"])

    def validate_response(self, response: Any) -> None:
        if response.status_code not in self.ask["parent"].get("skip_on", ()):
            super().validate_response(response)

    def parse_response(self, response: Any) -> Any:
        return [] if response.status_code in self.ask["parent"].get("skip_on", ()) else super().parse_response(response)

    def get_new_paginator(self) -> Any:
        return paginator(self.ask["paging"])

    def get_url_params(self, context: Any, next_page_token: Any) -> dict[str, Any]:
        paging, since = self.ask["paging"], self.ask["since"]
        params = dict(self.ask["params"])
        if since and since.get("param"):
            start = self.get_starting_replication_key_value(context)
            if start is not None:
                params[since["param"]] = start
        if paging.get("size_param"):
            params[paging["size_param"]] = paging["size"]
        if paging["style"] in ("link", "next_url"):
            return {**params, **dict(parse_qsl(next_page_token.query))} if next_page_token else params
        if next_page_token is None or paging.get("body"):
            return params
        return {**params, paging["param"]: next_page_token}

    def prepare_request_payload(self, context: Any, next_page_token: Any) -> dict[str, Any] | None:
        if self.ask["method"] == "GET":
            return None
        body: Any = next_page_token
        for name in reversed(self.ask["paging"]["body"].split(".")):
            body = {name: body}
        return body if next_page_token is not None else {}

    def post_process(self, row: dict[str, Any], context: Any = None) -> dict[str, Any] | None:
        if self.ask["keep"] and row.get(self.ask["keep"][0]) != self.ask["keep"][1]:
            return None
        return row


def stream(tap: Tap, job: Job, above: type[Events] | None) -> Events:
    ask = job["ask"]
    since = ask["since"]
    if (since and since["kind"] == "token") or ask["rate"] or ask["paging"].get("cap"):
        raise NotOffered
    if ask["conditional"] or ask["job"]:
        raise NotOffered
    if ask["errors"] or ask["deletes"] in ("soft", "feed") or ask["format"] != "json":
        raise NotOffered
    kinds = {"timestamp": th.DateTimeType, "integer": th.IntegerType, "text": th.StringType}
    known = [th.Property("id", th.StringType if not ask["numeric"] else th.IntegerType)]
    if since:
        known.append(th.Property(since["field"], kinds[since["kind"]]))
    others = [th.Property(name, th.CustomType({})) for name in ask["fields"] if not since or name != since["field"]]
    kind = type("Events", (Events,), {
        "payload_as_json": True, "http_method": ask["method"], "ask": ask, "base": job["url"], "path": ask["path"],
        "records_jsonpath": f"$.{ask['records']}[*]" if ask["records"] else "$[*]",
        "replication_key": since["field"] if since else None,
        "is_sorted": bool(since and since.get("ascending")),
        "schema": th.PropertiesList(*known, *others).to_dict(),
    })  # fmt: skip
    if above is not None:
        kind.parent_stream_type = above
        kind.path = ask["path"].replace("{parent.id}", "{parent}")
    return kind(tap)


def parents(job: Job) -> type[Events]:
    ask = {**job["ask"], **job["ask"]["parent"], "parent": {}, "since": None}

    def get_child_context(self: Any, record: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"parent": record["id"]}

    return type("Parents", (Events,), {
        "name": "parents", "ask": ask, "base": job["url"], "path": ask["path"], "records_jsonpath": "$.data[*]",
        "get_child_context": get_child_context, "schema": th.PropertiesList(th.Property("id", th.StringType)).to_dict(),
    })  # fmt: skip


def work(job: Job) -> int:
    class TapEvents(Tap):
        name = "tap-events"
        config_jsonschema = th.PropertiesList(th.Property("start_date", th.StringType)).to_dict()

        def discover_streams(self) -> list[Events]:
            if not job["ask"]["parent"]:
                return [stream(self, job, None)]
            above = parents(job)
            return [above(self), stream(self, job, above)]

    since = job["ask"]["since"]
    config = {"start_date": since["first"]} if since and since.get("first") else {}
    state = json.loads(Path("state.json").read_text()) if Path("state.json").exists() else None
    try:
        TapEvents(config=config, state=state).sync_all()
    except BaseException:
        _take(whole=False)
        raise
    _take(whole=job["ask"]["deletes"] == "sweep")
    return 0


def _take(whole: bool) -> None:
    """`whole`: the ACTIVATE_VERSION at the end of a full table tells a target to drop what was there before."""
    sys.stdout.flush()
    with rows(whole) as file:
        for text in Path("out").read_text().splitlines():
            if not text.startswith("{"):
                continue
            message = json.loads(text)
            if message["type"] == "RECORD" and message["stream"] == "events":
                file.write(member(text, "record") + "\n")
            elif message["type"] == "STATE":
                Path("state.json").write_text(json.dumps(message["value"]))


logging.getLogger("tap-events").setLevel(logging.WARNING)
serve(work)
