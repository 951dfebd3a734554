"""From an OpenAPI description (3.x, and 2.0): a stream for every GET that answers with a list of objects."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingest.discovery import Described, Proposal
from ingest.discovery.answer import CHANGED, IDS
from ingest.errors import ConfigError

Schema = Mapping[str, Any]

DEPTH = 8  # references followed
SIZES = ("limit", "per_page", "perPage", "page_size", "pageSize", "count", "size")
CURSORS = ("cursor", "page_token", "pageToken", "after", "starting_after", "next_token", "continuation")
SINCE = ("since", "updated_since", "updated_after", "modified_since", "updated_at[gte]", "from")
NEXT_TOKENS = ("next_cursor", "nextCursor", "next_page_token", "nextPageToken", "next_token", "end_cursor", "cursor")
NEXT_URLS = ("next", "next_url", "nextUrl", "@odata.nextLink", "nextLink")


def describe(document: Mapping[str, Any], where: str) -> Described:
    """Raises ConfigError for what is no OpenAPI description, and where no operation lists anything."""
    if not isinstance(document.get("paths"), Mapping) or not ("openapi" in document or "swagger" in document):
        raise ConfigError(f"{where} is no OpenAPI description: it has no `openapi` and `paths`")
    reader = _Reader(document)
    streams = dict(reader.streams())
    if not streams:
        raise ConfigError(f"{where}: no GET of it answers with a list of objects")
    source, why = {"base_url": _server(document)}, {"base_url": "the first of `servers`"}
    for key, value, reason in _auth(document):
        source[key], why[key] = value, reason
    return Described(source, why, streams)


class _Reader:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def streams(self) -> Iterator[tuple[str, Proposal]]:
        names: set[str] = set()
        for path, item in self._document["paths"].items():
            operation = item.get("get") if isinstance(item, Mapping) else None
            if not isinstance(operation, Mapping) or (found := self._list(operation)) is None:
                continue
            name = _name(path)
            while name in names:
                name += "_2"
            names.add(name)
            yield name, self._proposal(path, item, operation, *found)

    def _proposal(self, path: str, item: Schema, operation: Schema, at: str, record: Schema, outer: Schema) -> Proposal:
        proposal = Proposal()
        placeholders = re.findall(r"\{([^{}]+)\}", path)
        proposal.add("path", re.sub(r"\{([^{}]+)\}", r"{parent.\1}", path), f"GET {path}")
        for one in placeholders:
            proposal.hints.append(f"`{one}` comes from a parent stream: `parent: {{stream: …}}`")
        proposal.add("records", at, "where its answer has a list of objects")
        fields = self._fields(record)
        name = next((name for name in IDS if name in fields), None)
        if name is not None:
            proposal.add("id", name, "a field of its records")
        params = {p["name"]: p for p in self._parameters(item, operation) if p.get("in") == "query" and "name" in p}
        self._paginate(proposal, params, self._fields(outer))
        changed = next((field for field in CHANGED if field in fields), None)
        since = next((param for param in SINCE if param in params), None)
        if changed and since:
            value = {"type": "timestamp", "field": changed, "since": {"param": since}}
            proposal.add("incremental", value, f"its records have `{changed}`, and it takes `{since}`")
        elif changed:
            proposal.hints.append(f"incremental: its records have `{changed}`")
        return proposal

    def _paginate(self, proposal: Proposal, params: Mapping[str, Schema], outer: Mapping[str, Any]) -> None:
        size = next((name for name in SIZES if name in params), None)
        most = self._resolve(params[size].get("schema", params[size])).get("maximum") if size else None
        sized = {"size_param": size, "size": most} if size and isinstance(most, int) else {}
        cursor = next((name for name in CURSORS if name in params), None)
        token = next((name for name in NEXT_TOKENS if name in outer), None)
        if cursor and token:
            way = {"type": "cursor", "from": f"$.{token}", "param": cursor}
            proposal.add("paginate", way, f"it takes `{cursor}` and answers with `{token}`")
        elif url := next((name for name in NEXT_URLS if name in outer), None):
            path = f"$.{url}" if url.isidentifier() else f'$["{url}"]'
            proposal.add("paginate", {"type": "next_url", "from": path}, f"it answers with `{url}`")
        elif "offset" in params:
            proposal.add("paginate", {"type": "offset", "param": "offset", **sized}, "it takes `offset`")
        elif "page" in params:
            proposal.add("paginate", {"type": "page", "param": "page", **sized}, "it takes `page`")
        elif cursor:
            proposal.hints.append(f"paginate: it takes `{cursor}`, and its answer does not say where one comes from")
        if size and isinstance(most, int) and "paginate" in proposal.keys and "size" not in proposal.keys["paginate"]:
            proposal.add("params", {size: most}, f"`{size}` is {most} at most")

    def _list(self, operation: Schema) -> tuple[str, Schema, Schema] | None:
        """Where the list is, a record of it, and what is around it."""
        responses = operation.get("responses", {})
        response = self._resolve(next((responses[code] for code in ("200", 200, "default") if code in responses), {}))
        content = response.get("content", {})
        media: Schema = next((part for kind, part in content.items() if "json" in kind), {})
        schema = self._resolve(media.get("schema") or response.get("schema") or {})
        if (record := self._record(schema)) is not None:
            return "$", record, {}
        for name, inner in self._fields(schema).items():
            if (record := self._record(self._resolve(inner))) is not None:
                return f"$.{name}", record, schema
        return None

    def _record(self, schema: Schema) -> Schema | None:
        if schema.get("type") != "array" and "items" not in schema:
            return None
        item = self._resolve(schema.get("items", {}))
        return item if self._fields(item) or item.get("type") == "object" else None

    def _fields(self, schema: Schema) -> Mapping[str, Any]:
        found: dict[str, Any] = dict(schema.get("properties", {}))
        for part in schema.get("allOf", ()):
            found |= self._fields(self._resolve(part))
        return found

    def _parameters(self, item: Schema, operation: Schema) -> Sequence[Schema]:
        return [self._resolve(p) for p in (*item.get("parameters", ()), *operation.get("parameters", ()))]

    def _resolve(self, part: Any) -> Schema:
        for _ in range(DEPTH):
            if not isinstance(part, Mapping):
                return {}
            if "$ref" not in part:
                return part
            part = self._at(str(part["$ref"]))
        return {}

    def _at(self, reference: str) -> Any:
        found: Any = self._document
        for step in reference.removeprefix("#/").split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found


def _name(path: str) -> str:
    words = [part for part in path.strip("/").split("/") if part and "{" not in part]
    name = re.sub(r"[^a-z0-9_-]+", "_", (words[-1] if words else "items").lower()).strip("_-")
    return name or "items"


def _server(document: Mapping[str, Any]) -> str:
    servers = document.get("servers")
    if servers and isinstance(servers[0].get("url"), str) and servers[0]["url"].startswith("http"):
        return str(servers[0]["url"]).rstrip("/")
    if "host" in document:
        return f"{(document.get('schemes') or ['https'])[0]}://{document['host']}{document.get('basePath', '')}".rstrip(
            "/"
        )
    return "https://api.example.com"


def _auth(document: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    schemes = document.get("components", {}).get("securitySchemes") or document.get("securityDefinitions") or {}
    for name, scheme in schemes.items():
        kind, how = scheme.get("type"), str(scheme.get("scheme", "")).lower()
        if kind == "http" and how == "bearer":
            yield "auth", {"bearer": "${env:API_TOKEN}"}, f"the scheme `{name}`"
        elif kind == "basic" or (kind == "http" and how == "basic"):
            basic = {"user": "${env:API_USER}", "password": "${env:API_PASSWORD}"}
            yield "auth", {"basic": basic}, f"the scheme `{name}`"
        elif kind == "apiKey" and scheme.get("in") in ("header", "query", "cookie"):
            key = {"in": scheme["in"], "name": scheme["name"], "value": "${env:API_KEY}"}
            yield "auth", {"api_key": key}, f"the scheme `{name}`"
        else:
            continue
        return
