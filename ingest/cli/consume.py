"""`consume`: read topics, write to the store, commit."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Annotated

import typer

from consumers.run import Runner, patiently
from consumers.tally import Tally
from ingest import topics
from ingest.app import App
from ingest.cli import show
from ingest.cli.context import REDACTOR, ConfigOption, JsonOption, LogFormat, LogLevel, loaded, with_app
from ingest.cli.ops import OpsOption, listening
from ingest.config.model import Config
from ingest.errors import ConfigError
from ingest.signals import stopping
from ingest.web.readiness import Readiness

INCOMPLETE = 1

NameArgument = Annotated[
    str | None, typer.Argument(help="The consumer, as configured; may be absent where there is one.")
]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", help="Only these of its topics.")]
Once = Annotated[bool, typer.Option("--once", help="Until the end offsets seen at start, then exit.")]


def consume(
    name: NameArgument = None,
    topic: TopicOption = None,
    once: Once = False,
    config: ConfigOption = None,
    ops: OpsOption = None,
    as_json: JsonOption = False,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Read topics and write their events into the store. For ever, or up to what is there now."""
    configuration = loaded(
        config, log_format=log_format, log_level="warning" if once and log_level == "info" else log_level
    )

    chosen = _chosen(configuration.config, name)
    consumer = configuration.config.consumers[chosen]

    async def work(app: App) -> tuple[list[Tally], bool]:
        readiness = Readiness()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(listening(ops, app.config, readiness, once=once))
            progress = stack.enter_context(show.Progress(quiet=as_json or not once))

            def changed(tally: Tally) -> None:
                readiness.set(tally.topic, tally.blocked)
                if lost := tally.lost():
                    readiness.lost[tally.topic] = lost
                progress.tally(tally)

            stop = (await stack.enter_async_context(stopping())).stop
            admin = await patiently(app.admin, stop)

            async def prepare(found: Sequence[str]) -> None:
                await topics.ensure(admin, found, app.config.topics, replicated=app.replicated)

            runner = Runner(
                name=chosen, batch=consumer.batch, log=await app.log(), admin=admin,
                store=await patiently(app.store, stop), publisher=await patiently(app.publisher, stop),
                prepare=prepare, changed=changed,
            )  # fmt: skip
            readiness.started = True
            patterns = tuple(topic or consumer.topics)
            tallies = await (runner.once(patterns, stop) if once else runner.forever(patterns, stop))
            return tallies, stop.is_set()

    found, stopped = with_app(configuration, work)
    if once:
        show.tallies(found, as_json=as_json)
        if not found:
            patterns = ", ".join(topic or consumer.topics)
            typer.echo(f"no topic matches {patterns} yet; `ingest run --once` creates those of the sources", err=True)
        failed = [tally for tally in found if tally.failed is not None]
        for tally in failed:
            typer.echo(f"{tally.topic}: {REDACTOR.scrub(tally.failed or '')}", err=True)
        lost = any(tally.lost() for tally in found)
        raise typer.Exit(INCOMPLETE if stopped or failed or lost else 0)


def _chosen(config: Config, name: str | None) -> str:
    """Raises ConfigError where there is none of that name, or no only one."""
    known = list(config.consumers)
    if not known:
        topics = ", ".join(f'"{source}.*"' for source in config.sources)
        raise ConfigError(
            f"no consumer is configured; write one: consumers: {{warehouse: {{kind: store, topics: [{topics}]}}}}"
        )
    if name is None and len(known) == 1:
        return known[0]
    if name is None:
        raise ConfigError(f"which consumer? {', '.join(known)}")
    if name not in known:
        raise ConfigError(f"no consumer `{name}`; configured: {', '.join(known)}")
    return name
