"""`discover`: proposes a configuration from an API's own answers, or from its OpenAPI description.

Every way to page that the answer hints at is tried: the one that leads to other records is proposed, with its evidence.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import orjson
import typer

from checkpoints import StreamId
from ingest import logging
from ingest.app import App
from ingest.cli.context import REDACTOR, with_app
from ingest.cli.looking import first_response
from ingest.cli.opened import open_source
from ingest.config.loader import FILE, Loaded, parse
from ingest.discovery import Described, Proposal
from ingest.discovery.answer import ListOf, lists, paginations, propose
from ingest.discovery.openapi import describe
from ingest.discovery.rows import NAMES, Format, rows
from ingest.errors import ConfigError, IngestError, Permanent, SourceChanged
from ingest.report import Report
from ingest.sources import Page

SOURCE = "api"
ASKED = "discover"  # in place of the name of a file
SHOWN = 300  # characters of an answer
TRIED = 2  # pages read with each way to page
TRIES = 12  # ways to page that are tried
ONCE = {"attempts": 2, "base": "200ms"}

_PLAIN = re.compile(r"[A-Za-z/$][\w./$-]*|https?://[\w./:-]+")  # what YAML reads as the text that it is

Auth = Mapping[str, Any]


class Evidence(NamedTuple):
    pages: int
    records: int
    stop: str | None


def discover(
    target: Annotated[str, typer.Argument(help="The URL of a listing, or of an OpenAPI description, or its file.")],
    bearer: Annotated[str | None, typer.Option("--bearer", help="A token, by reference: '${env:TOKEN}'.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="A header: 'X-Api-Key: ${env:KEY}'.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What to call the source.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the configuration here.")] = None,
) -> None:
    """Propose a configuration from what an API answers. Or from its OpenAPI description; with the evidence."""
    logging.configure(REDACTOR, form="auto", level="error")
    auth: dict[str, Any] = {"auth": {"bearer": bearer}} if bearer else {}
    if header:
        auth["headers"] = dict(_header(text) for text in header)
    document = _document(Path(target).read_text(encoding="utf-8")) if Path(target).is_file() else None
    if document is None:
        found, document = _answered(target, auth)
    described = found if document is None else describe(document, target)
    source = name or _name(described.source["base_url"])
    text = _yaml(source, {**described.source, **auth}, described)
    parse(text)  # what is proposed is accepted
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    where = "" if str(out) == FILE else f" --config {out}"
    stream = next(iter(described.streams), "STREAM")
    print(f"wrote {out}; try it: ingest preview{where} -s {source} -t {stream}")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise typer.BadParameter(f"{text!r} is no header: write 'Name: value'", param_hint="--header")
    return name.strip(), value.strip()


def _name(url: str) -> str:
    labels = (urlsplit(url).hostname or "api").split(".")
    if labels[-1].isdecimal() or ":" in labels[-1]:  # an address
        return "api"
    plain = [label for label in labels[:-1] if label not in ("api", "www", "rest")] or labels
    return re.sub(r"[^a-z0-9_-]", "-", plain[-1]).strip("-") or "api"


def _answered(url: str, auth: Auth) -> tuple[Described, Mapping[str, Any] | None]:
    """As `_asked`; what goes wrong stands in no file."""
    try:
        return _asked(url, auth)
    except (ConfigError, Permanent) as exc:
        kind = ConfigError if isinstance(exc, ConfigError) else Permanent
        raise kind(re.sub(rf"^{ASKED}:\d+:\d+: ", "", str(exc), flags=re.MULTILINE)) from exc


def _asked(url: str, auth: Auth) -> tuple[Described, Mapping[str, Any] | None]:
    """What the API answers says, or the OpenAPI description that it is."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"{url!r} is no file and no URL; a URL begins with https:// or http://")
    folder, _, last = parts.path.rstrip("/").rpartition("/")
    source = {"base_url": f"{parts.scheme}://{parts.netloc}{folder}"}
    params = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = f"/{last}"
    stream = {"path": path, "records": "$", **({"params": params} if params else {})}
    answer, headers, form = with_app(_loaded(source, auth, stream), _first)
    if isinstance(answer, Mapping) and ("openapi" in answer or "swagger" in answer):
        return Described(source, {}, {}), answer
    found = max(lists(answer), key=lambda one: len(one.records), default=None)
    if found is None:
        raise SourceChanged(
            f"GET {url} answers without a list of objects; give the URL of one:"
            f" {REDACTOR.scrub(orjson.dumps(answer).decode())[:SHOWN]}"
        )
    proposal = propose(found, path)
    if form is not None:
        proposal.add("format", form, f"the answer is {NAMES[form]}")
    if params:
        proposal.add("params", params, "as they were asked")
    _paginate(proposal, found, answer, headers, url, lambda keys: _loaded(source, auth, keys))
    why = {"base_url": "as it was asked"}
    return Described(source, why, {_stream_name(last): proposal}), None


def _stream_name(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", text.rpartition(".")[0].lower() or text.lower()).strip("-_") or "items"


def _loaded(source: Mapping[str, Any], auth: Auth, stream: Mapping[str, Any]) -> Loaded:
    configured = {**source, **auth, "retry": ONCE, "streams": {"items": stream}}
    return parse(json.dumps({"version": 1, "sources": {SOURCE: configured}}), ASKED)


class Answered(NamedTuple):
    """The first answer, decoded."""

    body: Any
    headers: Mapping[str, str]
    format: Format | None = None  # where it is no JSON


async def _first(app: App) -> Answered:
    response = await first_response(app, StreamId(SOURCE, "items"))
    try:
        return Answered(orjson.loads(response.body), response.headers)
    except orjson.JSONDecodeError:
        text = response.body.decode("utf-8", "replace")
    if (document := _document(text)) is not None:
        return Answered(document, response.headers)
    if (found := rows(response.body)) is not None:
        return Answered(found.records, response.headers, found.format)
    raise SourceChanged(
        "the answer is neither JSON, JSON Lines, CSV nor an OpenAPI description; give the URL of a list:"
        f" {REDACTOR.scrub(text)[:SHOWN]!r}"
    )


def _paginate(proposal: Proposal, found: ListOf, answer: Any, headers: Mapping[str, str], url: str, load: Any) -> None:
    """The first way to page that leads to other records."""
    for tried, (way, why) in enumerate(paginations(answer, headers, url, len(found.records))):
        if tried == TRIES:
            break
        keys = {**{k: v for k, v in proposal.keys.items() if k != "paginate"}, "paginate": way}
        try:
            evidence = with_app(load(keys), _listed)
        except IngestError:
            continue
        if evidence.pages == TRIED:
            proposal.add("paginate", way, f"{why}; {evidence.pages} pages of it have {evidence.records} other records")
            return
    proposal.hints.append(
        "paginate: nothing in the answer leads to another page; is this the whole list? `ingest preview` shows it"
    )


async def _listed(app: App) -> Evidence:
    pages: list[Page] = []
    async with AsyncExitStack() as stack:
        opened = await open_source(app, SOURCE, stack, alone=True)
        async with aclosing(opened.stream("items").pages(None, Report(StreamId(SOURCE, "items")))) as listing:
            async for page in listing:
                pages.append(page)
                if page.stop is not None or len(pages) == TRIED:
                    break
    ids = [{record.id for record in page.records} for page in pages]
    if len(ids) > 1 and (not ids[1] or ids[0] & ids[1]):
        raise SourceChanged("the second page is like the first, or empty")
    return Evidence(len(pages), sum(map(len, ids)), pages[-1].stop)


def _document(text: str) -> Mapping[str, Any] | None:
    """An OpenAPI description, as JSON or as YAML."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(StringIO(text))
    except YAMLError:
        return None
    return found if isinstance(found, Mapping) and ("openapi" in found or "swagger" in found) else None


def _yaml(name: str, source: Mapping[str, Any], described: Described) -> str:
    lines = ["version: 1", "sources:", f"  {name}:"]
    lines += [_line(4, key, value, described.why.get(key, "")) for key, value in source.items()]
    lines.append("    streams:")
    for stream, proposal in described.streams.items():
        mark = "# " if "{parent." in str(proposal.keys["path"]) else ""  # until it is said whose records fill it
        lines.append(f"      {mark}{stream}:")
        lines += [_line(8, mark + key, value, proposal.why[key]) for key, value in proposal.keys.items()]
        lines += [f"        # {hint}" for hint in proposal.hints]
    lines += ["consumers:", f'  warehouse: {{kind: store, topics: ["{name}.*"]}}  # who writes them into rows']
    return "\n".join(lines) + "\n"


def _line(indent: int, key: str, value: Any, why: str) -> str:
    text = f"{' ' * indent}{key}: {_flow(value)}"
    return f"{text}  # {why}" if why else text


def _flow(value: Any) -> str:
    """YAML in one line; JSON where plain text would be read as something else."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z/$][\w./$:-]*", value)
        and value not in ("true", "false", "null")
    ):
        return value
    return json.dumps(value, ensure_ascii=False)
