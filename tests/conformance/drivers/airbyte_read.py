"""airbyte-cdk's declarative source: `{"url", "ask"}`; the records it emits are added to the file `rows`."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from forked import Job, NotOffered, member, only_write_down_waits, rows, serve

only_write_down_waits()

from airbyte_cdk.entrypoint import AirbyteEntrypoint  # noqa: E402
from airbyte_cdk.models import AirbyteStateMessageSerializer, ConfiguredAirbyteCatalogSerializer  # noqa: E402
from airbyte_cdk.sources.declarative.concurrent_declarative_source import (  # noqa: E402
    ConcurrentDeclarativeSource,
)

SECONDS = "%Y-%m-%dT%H:%M:%SZ"
SCHEMA = {"type": "object", "additionalProperties": True, "properties": {}}


def expression(text: str) -> str:
    return "{{ " + text + " }}"


def parameter(name: str) -> dict[str, str]:
    return {"type": "RequestOption", "inject_into": "request_parameter", "field_name": name}


ACTIONS = {
    "skip": "IGNORE", "end": "IGNORE", "fail": "FAIL", "retry": "RETRY", "rate_limited": "RATE_LIMITED",
    "refresh_auth": "REFRESH_TOKEN_THEN_RETRY", "restart_listing": "RESET_PAGINATION",
}  # fmt: skip


def response_filter(do: str, status: int = 200, member: str = "") -> dict[str, Any]:
    found = {"type": "HttpResponseFilter", "action": ACTIONS[do]}
    if member:
        return {**found, "predicate": expression(f"response.get('{member}')")}
    return {**found, "http_codes": [status]}


def paginator(paging: dict[str, Any]) -> dict[str, Any]:
    style = paging["style"]
    if style == "none":
        return {"type": "NoPagination"}
    found: dict[str, Any] = {"type": "DefaultPaginator", "page_token_option": {"type": "RequestPath"}}
    if style == "link":
        strategy: dict[str, Any] = {
            "type": "CursorPagination", "cursor_value": expression("headers['link']['next']['url']"),
            "stop_condition": expression("'next' not in headers['link']"),
        }  # fmt: skip
    elif style == "next_url":
        strategy = {"type": "CursorPagination", "cursor_value": expression(f"response['{paging['at']}']")}
    elif style == "cursor":
        strategy = {"type": "CursorPagination", "cursor_value": _token(paging["at"])}
        if paging.get("more"):
            strategy["stop_condition"] = expression(f"not response['{paging['more']}']")
        found["page_token_option"] = _place(paging)
    elif style not in ("page", "offset"):
        raise NotOffered
    else:
        found["page_token_option"] = parameter(paging["param"])
        strategy = {"type": "OffsetIncrement", "inject_on_first_request": True}
        if style == "page":
            strategy |= {"type": "PageIncrement", "start_from_page": paging["start"]}
        if paging.get("size") and not paging.get("short_pages"):
            strategy["page_size"] = paging["size"]
    if paging.get("size_param") and not paging.get("short_pages"):
        found["page_size_option"] = parameter(paging["size_param"])
    return {**found, "pagination_strategy": strategy}


def _place(paging: dict[str, Any]) -> dict[str, Any]:
    if paging.get("body"):
        return {"type": "RequestOption", "inject_into": "body_json", "field_path": paging["body"].split(".")}
    return parameter(paging["param"])


def _fixed_size(paging: dict[str, Any]) -> dict[str, str]:
    """Where pages may be short, the strategy must not know their size: it would end on a short one."""
    return {paging["size_param"]: str(paging["size"])} if paging.get("short_pages") else {}


def _token(at: str) -> str:
    if at.startswith("header."):
        return expression(f"headers['{at[7:]}']")
    if at.startswith("last."):
        return expression(f"last_record['{at[5:]}']")
    return expression(f"response['{at}']")


def incremental(since: dict[str, Any]) -> dict[str, Any]:
    if since["kind"] == "token":
        raise NotOffered
    option = {"start_time_option": parameter(since["param"])} if since.get("param") else {}
    if since["kind"] == "integer":
        return {
            "type": "IncrementingCountCursor", "cursor_field": since["field"],
            "start_value": since.get("first") or 0, "start_value_option": parameter(since["param"]),
        }  # fmt: skip
    written = since["format"] or SECONDS
    formats = since["formats"] or ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%S%z"]
    found = {
        "type": "DatetimeBasedCursor", "cursor_field": since["field"], "datetime_format": written,
        "cursor_datetime_formats": formats,
        "start_datetime": {
            "type": "MinMaxDatetime", "datetime": since.get("first") or "1970-01-01T00:00:00Z",
            "datetime_format": written if since["first"] else SECONDS,
        },
    }  # fmt: skip
    if seconds := since["lookback"] or since["lag"] or int(since["exclusive"]):
        found["lookback_window"] = f"PT{seconds}S"
    if since["until"]:
        found |= {"end_time_option": parameter(since["until"]), "step": "P1D", "cursor_granularity": "PT1S"}
    if since.get("descending") and not option:
        found["is_data_feed"] = True
    return {**found, **option}


def authenticator(how: dict[str, Any]) -> dict[str, Any]:
    if "bearer" in how:
        return {"type": "BearerAuthenticator", "api_token": how["bearer"]}
    if "token_url" in how:
        return _oauth(how)
    if "login" in how:
        return _session(how)
    if "sign" in how:
        raise NotOffered
    place, into = ("header", "header") if "header" in how else ("query", "request_parameter")
    option = {"type": "RequestOption", "inject_into": into, "field_name": how[place]}
    return {"type": "ApiKeyAuthenticator", "api_token": how["value"], "inject_into": option}


def _oauth(how: dict[str, Any]) -> dict[str, Any]:
    found = {
        "type": "OAuthAuthenticator", "token_refresh_endpoint": how["token_url"], "client_id": how["client_id"],
        "client_secret": how["value"], "grant_type": how["grant"],
    }  # fmt: skip
    if how["grant"] == "refresh_token":
        found |= {
            "client_id": expression("config['client_id']"), "client_secret": expression("config['client_secret']"),
            "refresh_token": expression("config['refresh_token']"),
            "refresh_token_updater": {
                "refresh_token_config_path": ["refresh_token"], "access_token_config_path": ["access_token"],
                "token_expiry_date_config_path": ["token_expiry_date"],
            },
        }  # fmt: skip
    return found


def _session(how: dict[str, Any]) -> dict[str, Any]:
    base, _, path = how["login"].rpartition("/")
    header = {"type": "RequestOption", "inject_into": "header", "field_name": how["send"]}
    return {
        "type": "SessionTokenAuthenticator", "session_token_path": ["token"], "expiration_duration": "PT30M",
        "login_requester": {
            "type": "HttpRequester", "url_base": base, "path": f"/{path}", "http_method": "POST",
            "request_body_json": {"password": how["value"]},
        },
        "request_authentication": {"type": "ApiKey", "inject_into": header},
    }  # fmt: skip


def config(how: dict[str, Any]) -> dict[str, Any]:
    """What a user of the connector fills in; where tokens rotate, what the connector put there last."""
    if Path("config.json").exists() and "refresh_token" in (kept := json.loads(Path("config.json").read_text())):
        return kept
    if how.get("grant") != "refresh_token":
        return {}
    return {"client_id": how["client_id"], "client_secret": how["value"], "refresh_token": how["refresh_token"]}


def router(job: Job) -> dict[str, Any]:
    plain = {**job["ask"], **job["ask"]["parent"], "parent": {}, "since": None, "errors": []}
    [above] = manifest({**job, "ask": plain})["streams"]
    config = {
        "type": "ParentStreamConfig", "parent_key": "id", "partition_field": "parent",
        "stream": {**above, "name": "parents"},
    }  # fmt: skip
    return {"type": "SubstreamPartitionRouter", "parent_stream_configs": [config]}


def manifest(job: Job) -> dict[str, Any]:
    ask = job["ask"]
    requester: dict[str, Any] = {
        "type": "HttpRequester", "url_base": job["url"], "path": ask["path"], "http_method": ask["method"],
        "request_parameters": {**ask["params"], **_fixed_size(ask["paging"])},
        "error_handler": {
            "type": "DefaultErrorHandler",
            "backoff_strategies": [
                {"type": "WaitTimeFromHeader", "header": "Retry-After"}, {"type": "ExponentialBackoffStrategy"},
            ],
        },
    }  # fmt: skip
    if ask["read_timeout"]:
        requester["read_timeout_in_seconds"] = ask["read_timeout"]
    if ask["auth"]:
        requester["authenticator"] = authenticator(ask["auth"])
    filters = [response_filter(**rule) for rule in ask["errors"]]
    filters += [response_filter("skip", status) for status in ask["parent"].get("skip_on", ())]
    if "token_url" in ask["auth"]:
        filters.append(response_filter("refresh_auth", 401))
    if filters:
        requester["error_handler"]["response_filters"] = filters
    path = ask["records"].split(".") if ask["records"] else []
    selector: dict[str, Any] = {"type": "RecordSelector", "extractor": {"type": "DpathExtractor", "field_path": path}}
    if ask["keep"]:
        field, value = ask["keep"]
        selector["record_filter"] = {"type": "RecordFilter", "condition": expression(f"record['{field}'] == '{value}'")}
    stream: dict[str, Any] = {
        "type": "DeclarativeStream", "name": "events", "primary_key": ["id"],
        "schema_loader": {"type": "InlineSchemaLoader", "schema": SCHEMA},
        "retriever": {
            "type": "SimpleRetriever", "requester": requester, "record_selector": selector,
            "paginator": paginator(ask["paging"]),
        },
    }  # fmt: skip
    if ask["format"] == "xml":
        stream["retriever"]["decoder"] = {"type": "XmlDecoder"}
    elif ask["format"] != "json":
        stream["retriever"]["decoder"] = {"type": {"csv": "CsvDecoder", "jsonl": "JsonlDecoder"}[ask["format"]]}
    if ask["deletes"] in ("soft", "feed") or ask["conditional"]:
        raise NotOffered
    if ask["job"]:
        stream["retriever"] = reports(requester, selector)
    if ask["packed"]:
        stream["retriever"]["decoder"] = {"type": "GzipDecoder", "decoder": {"type": "JsonDecoder"}}
    if ask["parent"]:
        requester["path"] = ask["path"].replace("{parent.id}", expression("stream_partition.parent"))
        stream["retriever"]["partition_router"] = router(job)
    if any(rule["do"] == "restart_listing" for rule in ask["errors"]):
        stream["retriever"]["pagination_reset"] = {"type": "PaginationReset", "action": "RESET"}
    if cap := ask["paging"].get("cap"):
        limits = {"type": "PaginationResetLimits", "number_of_records": cap}
        stream["retriever"]["pagination_reset"] = {
            "type": "PaginationReset", "action": "SPLIT_USING_CURSOR", "limits": limits,
        }  # fmt: skip
    if ask["since"]:
        stream["incremental_sync"] = incremental(ask["since"])
    budget: dict[str, Any] = {}
    if ask["rate"]:
        rate = {"type": "Rate", "limit": 1, "interval": f"PT{1 / ask['rate']}S"}
        policy = {"type": "MovingWindowCallRatePolicy", "rates": [rate], "matchers": []}
        budget["api_budget"] = {"type": "HTTPAPIBudget", "policies": [policy]}
    return {
        **budget, "version": "7.0.0", "type": "DeclarativeSource", "streams": [stream],
        "check": {"type": "CheckStream", "stream_names": ["events"]},
        "spec": {"type": "Spec", "connection_specification": {"type": "object", "properties": {}}},
    }  # fmt: skip


def reports(requester: dict[str, Any], selector: dict[str, Any]) -> dict[str, Any]:
    get = {name: value for name, value in requester.items() if name != "path"} | {"http_method": "GET"}
    bare = {name: value for name, value in get.items() if name not in ("authenticator", "url_base")}
    status = {"type": "AsyncJobStatusMap", "running": ["RUNNING"], "completed": ["DONE"], "failed": ["FAILED"]}
    return {
        "type": "AsyncRetriever", "record_selector": selector, "status_mapping": {**status, "timeout": []},
        "status_extractor": {"type": "DpathExtractor", "field_path": ["status"]},
        "download_target_extractor": {"type": "DpathExtractor", "field_path": ["url"]},
        "creation_requester": requester,
        "polling_requester": {**get, "path": "/reports/" + expression("creation_response['id']")},
        "download_requester": {**bare, "url": expression("download_target")},
        "download_extractor": {"type": "DpathExtractor", "field_path": ["data"]},
    }  # fmt: skip


def work(job: Job) -> int:
    mode = "incremental" if job["ask"]["since"] else "full_refresh"
    stream = {"name": "events", "json_schema": SCHEMA, "supported_sync_modes": ["full_refresh", "incremental"]}
    catalog = {"streams": [{"stream": stream, "sync_mode": mode, "destination_sync_mode": "append"}]}
    filled_in = config(job["ask"]["auth"])
    for name, content in (("config", filled_in), ("catalog", catalog)):
        Path(f"{name}.json").write_text(json.dumps(content))
    state = json.loads(Path("state.json").read_text()) if Path("state.json").exists() else None
    source = ConcurrentDeclarativeSource(
        catalog=ConfiguredAirbyteCatalogSerializer.load(catalog),
        config=filled_in,
        state=[AirbyteStateMessageSerializer.load(one) for one in state] if state else None,
        source_config=manifest(job),
    )
    arguments = ["read", "--config", "config.json", "--catalog", "catalog.json"]
    arguments += ["--state", "state.json"] if state else []
    try:
        # "Overwrite", where deletes matter: a destination takes a stream's rows for all there are when it is complete.
        with rows(whole=job["ask"]["deletes"] == "sweep") as file:
            _read(source, arguments, file)
    except Exception as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return 1
    finally:
        _keep_config()
    return 0


def _read(source: ConcurrentDeclarativeSource, arguments: list[str], file: TextIO) -> None:
    status = ""
    for text in AirbyteEntrypoint(source).run(AirbyteEntrypoint.parse_args(arguments)):
        message = json.loads(text)
        if message["type"] == "RECORD":
            file.write(member(text, "data") + "\n")
        elif message["type"] == "STATE":
            Path("state.json").write_text(json.dumps([message["state"]]))
        elif message["type"] == "TRACE" and message["trace"]["type"] == "STREAM_STATUS":
            status = message["trace"]["stream_status"]["status"]
        else:
            print(text, file=sys.stderr)
    if status != "COMPLETE":
        raise IncompleteStatusException(status)


class IncompleteStatusException(Exception):
    """The stream is not COMPLETE."""


def _keep_config() -> None:
    """A configuration that the connector changed is on its standard output, for the platform to keep."""
    sys.stdout.flush()
    for text in Path("out").read_text().splitlines():
        if '"CONTROL"' in text:
            Path("config.json").write_text(json.dumps(json.loads(text)["control"]["connectorConfig"]["config"]))


logging.disable(logging.NOTSET)
os.environ.setdefault("DEPLOYMENT_MODE", "oss")
serve(work)
