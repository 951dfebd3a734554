"""A source of the configuration, ready to be asked. Its references are resolved here, and nowhere before."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from ingest.app import App
from ingest.config.model import Source
from ingest.config.references import files, resolve
from ingest.imports import lightly

if TYPE_CHECKING:
    from ingest.sources import Source as Listed
    from ingest.sources.clients import AnyClients
    from ingest.sources.exchange import Trace
    from ingest.sources.family import Family


class Opened(NamedTuple):
    source: Source
    family: "Family"

    def stream(self, name: str) -> "Listed":
        return self.family.stream(name)


async def open_source(
    app: App,
    name: str,
    stack: AsyncExitStack,
    *,
    alone: bool = False,
    clients: "AnyClients | None" = None,
    trace: "Trace | None" = None,
) -> Opened:
    """`alone`: the pace is ours, not shared with whoever else asks. `clients`: in place of those that ask the API, at
    any pace. `trace` is told every exchange."""
    with lightly():  # the other verbs do without an HTTP client
        from ingest.sources.auth import State
        from ingest.sources.auth.keyring import Reading, keeps_tokens, open_keyring
        from ingest.sources.family import Family, Parts
        from ingest.sources.gate import Gate
        from ingest.sources.transport import open_transport

    where = app.loaded.within(f"sources.{name}")
    source = resolve(app.config.sources[name], app.redactor, where)
    offline = clients is not None
    limits = source.limits.model_copy(update={"rate": None}) if offline else source.limits
    gate = Gate(name, limits, None if alone else await app.rates(), app.holder)
    transport = await stack.enter_async_context(
        open_transport(source, app.redactor, where=where, gate=gate, clients=clients, trace=trace)
    )
    part = app.config.sources[name]
    reading = Reading(files(part), lambda secrets: resolve(part, secrets, where))
    state = State(*await app.tokens(), app.holder) if keeps_tokens(source) and not offline else None
    keyring = await stack.enter_async_context(
        open_keyring(name, source, transport, app.redactor, state, reading, offline=offline)
    )
    return Opened(source, Family(Parts(source, transport, keyring, app.redactor, where)))
