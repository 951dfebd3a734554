"""A stream of which nobody has said yet where its records are: its first answer is looked at, whatever is in it."""

from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

import orjson

from checkpoints import StreamId
from ingest.app import App
from ingest.cli.opened import open_source
from ingest.config.loader import Loaded
from ingest.discovery.answer import ListOf, lists
from ingest.errors import SourceChanged, SourceUnavailable
from ingest.report import Report

if TYPE_CHECKING:
    from ingest.sources.clients import AnyClients
    from ingest.sources.exchange import Response

ANYWHERE = "$"  # stands for the path that nobody has written


async def first_response(app: App, name: StreamId, clients: "AnyClients | None" = None) -> "Response":
    """What the first request of the stream is answered. `clients`: in place of those that ask the API.

    Raises what keeps an answer from coming, and SourceChanged for one that could not be read."""
    seen: list[Response] = []
    async with AsyncExitStack() as stack:
        opened = await open_source(
            app, name.source, stack, alone=True, clients=clients, trace=lambda sent, response: seen.append(response)
        )
        try:
            async with aclosing(opened.stream(name.stream).pages(None, Report(name))) as pages:
                await anext(pages)
        except (SourceChanged, SourceUnavailable):
            if not seen or seen[-1].status != 200:
                raise
    return seen[-1]


def is_open(configuration: Loaded, name: StreamId) -> bool:
    """Whether the file does not say where its records are."""
    return f"sources.{name.source}.streams.{name.stream}.records.path" not in configuration.places


async def lists_in_answer(app: App, name: StreamId, clients: "AnyClients | None" = None) -> Sequence[ListOf]:
    """The lists of objects in the first answer, the longest first. Raises SourceChanged where there are none."""
    response = await first_response(app, name, clients)
    try:
        found = sorted(lists(orjson.loads(response.body)), key=lambda one: -len(one.records))
    except orjson.JSONDecodeError:
        found = []
    if not found:
        where = app.loaded.where(f"sources.{name.source}.streams.{name.stream}")
        raise SourceChanged(
            f"{where}: no `records` yet, and the first answer is no JSON with a list of objects in it: look at it with"
            " `--http`, and write where they are: `records: $.data`"
        )
    return found
