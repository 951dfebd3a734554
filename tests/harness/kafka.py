"""Apache Kafka for tests: an address in INGEST_TEST_KAFKA, else a container, else local Java processes (KRaft).

Every broker is also a controller; topics are never made by accident (auto.create.topics.enable=false). A broker can be
killed, paused and restarted on the same port with its data.
"""

import asyncio
import os
import uuid
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from tests.harness.brokers import START_TIMEOUT, Broker, ContainerBroker, LocalBroker
from tests.harness.processes import docker_answers, free_ports, wait_until

ADDRESS = "INGEST_TEST_KAFKA"
PROBE_TIMEOUT_MS = 5_000
SYNC_TIMEOUT = 90.0  # seconds until a broker that was away has caught up

T = TypeVar("T")


class Kafka:
    """Made by `start`. Brokers are numbered from 1, as their node ids. `listeners`: name → port, on localhost."""

    def __init__(self, bootstrap: str, brokers: Sequence[Broker], listeners: Mapping[str, int] | None = None) -> None:
        self.bootstrap = bootstrap
        self.listeners = listeners or {}
        self._brokers = brokers

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        """For what a person does to the cluster, or asks it."""
        client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            await client.start()
            yield client
        finally:
            await client.close()

    def kill(self, n: int = 1) -> None:
        """SIGKILL."""
        self._broker(n).kill()

    def pause(self, n: int = 1) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self._broker(n).pause()

    def resume(self, n: int = 1) -> None:
        self._broker(n).resume()

    def ask_to_stop(self, n: int = 1) -> None:
        """SIGTERM, and no wait: it hands its partitions over first."""
        self._broker(n).ask_to_stop()

    def runs(self, n: int = 1) -> bool:
        return self._broker(n).running()

    def start_again(self, n: int = 1) -> None:
        """And no wait for it."""
        self._broker(n).stop()
        self._broker(n).start()

    def restart(self, n: int = 1) -> None:
        """Also after `kill`. Returns when the whole cluster answers again."""
        self.start_again(n)
        self.wait()

    def heal(self) -> None:
        """Every broker runs, and every copy of every partition is in sync."""
        for broker in self._brokers:
            broker.resume()
            if not broker.running():
                broker.start()
        self.wait()
        wait_until(
            lambda: not _behind(self.bootstrap),
            timeout=SYNC_TIMEOUT,
            what=lambda: f"copies that are not in sync: {_behind(self.bootstrap)}",
        )

    def stop(self) -> None:
        """All at once, politely: a broker that stops hands its partitions over."""
        for broker in self._brokers:
            broker.ask_to_stop()
        for broker in self._brokers:
            broker.stop()

    def close(self) -> None:
        """Kill all and delete their data."""
        for broker in self._brokers:
            broker.discard()

    def wait(self) -> None:
        """Until every broker that runs is known to the cluster."""
        running = [broker for broker in self._brokers if broker.running()]
        for broker in running:
            broker.wait_for_port()
        wait_until(
            lambda: _known_brokers(self.bootstrap) >= len(running),
            timeout=START_TIMEOUT,
            what=lambda: "\n".join([f"Kafka at {self.bootstrap} does not answer", *(b.last_words() for b in running)]),
        )

    def _broker(self, n: int) -> Broker:
        if not self._brokers:
            raise RuntimeError(f"the brokers of {ADDRESS} are not ours to stop; unset it to run this test")
        return self._brokers[n - 1]


class Listeners(NamedTuple):
    """Ways into a broker besides the plain one, all on localhost."""

    protocols: Mapping[str, str]  # NAME → SSL | SASL_SSL | SASL_PLAINTEXT
    properties: Mapping[str, str]  # of server.properties: certificates, mechanisms
    advertised: Mapping[str, str] = {}  # NAME → a host other than localhost
    scram: Sequence[str] = ()  # users, as `kafka-storage format --add-scram` takes them
    java: Sequence[str] = ()  # options of the JVM


NO_LISTENERS = Listeners({}, {})


def start_guarded(directory: Path, listeners: Listeners) -> Kafka:
    """One local broker with these listeners; the plain one is for the harness."""
    directory.mkdir(parents=True, exist_ok=True)
    port, *others = free_ports(1 + len(listeners.protocols))
    ports = dict(zip(listeners.protocols, others, strict=True))
    [node] = _local_nodes(directory, [port], {**_defaults(1), **listeners.properties}, listeners, ports)
    return _started(Kafka(f"127.0.0.1:{port}", [node], ports), [node])


class Door(NamedTuple):
    """One more port of one broker, and the one that clients who come in by it are told: a proxy's."""

    port: int
    told: int


def start(
    directory: Path,
    *,
    brokers: int = 1,
    properties: Mapping[str, str] | None = None,
    doors: Mapping[str, Sequence[Door]] | None = None,
) -> Kafka:
    """A cluster that answers; `properties` are settings of server.properties. Logs and data go to `directory`.

    A cluster given by its address is used as it is, unless there are to be `doors`: a listener's name (a word in
    capitals) and a door for each broker. With doors, or with more than one broker, they are always local processes.
    """
    if (address := os.environ.get(ADDRESS)) and not doors:
        return Kafka(address.removeprefix("kafka://"), [])
    directory.mkdir(parents=True, exist_ok=True)
    settings = {**_defaults(brokers), **(properties or {})}
    nodes: list[Broker]
    ports = free_ports(brokers)
    if brokers == 1 and not doors and docker_answers():
        nodes = [ContainerBroker(ports[0], settings)]
    else:
        nodes = list(_local_nodes(directory, ports, settings, doors=doors))
    return _started(Kafka(",".join(f"127.0.0.1:{port}" for port in ports), nodes), nodes)


def _started(kafka: Kafka, nodes: Sequence[Broker]) -> Kafka:
    try:
        for node in nodes:
            node.start()
        kafka.wait()
    except BaseException:
        kafka.close()
        raise
    return kafka


def _defaults(brokers: int) -> dict[str, str]:
    replicas, in_sync = str(min(brokers, 3)), str(max(1, min(brokers, 3) - 1))
    return {
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "4",
        "group.min.session.timeout.ms": "500",  # a test may not wait for 6 s
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "4194304",  # 128 MB by default, a quarter of this heap
    }


def _local_nodes(
    directory: Path,
    ports: Sequence[int],
    settings: Mapping[str, str],
    listeners: Listeners = NO_LISTENERS,
    extra: Mapping[str, int] | None = None,
    doors: Mapping[str, Sequence[Door]] | None = None,
) -> list[LocalBroker]:
    """`extra`: the ports of `listeners`, which one node alone can have."""
    controllers = free_ports(len(ports))
    voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
    nodes = []
    for n, (port, controller) in enumerate(zip(ports, controllers, strict=True), 1):
        own = {
            "process.roles": "broker,controller",
            "node.id": str(n),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": str(directory / f"broker-{n}"),
        }
        if doors:
            own |= _with_doors(own["listeners"], port, {name: of[n - 1] for name, of in doors.items()})
        if extra:
            plain = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
            protocols = {**plain, **listeners.protocols}
            own["listener.security.protocol.map"] = ",".join(f"{name}:{kind}" for name, kind in protocols.items())
            own["listeners"] += "".join(f",{name}://localhost:{port}" for name, port in extra.items())
            hosts = {name: listeners.advertised.get(name, "localhost") for name in extra}
            own["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{port}" + "".join(
                f",{name}://{hosts[name]}:{port}" for name, port in extra.items()
            )
        file = directory / f"broker-{n}.properties"
        nodes.append(LocalBroker(file, port, {**settings, **own}, listeners.java))
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: node.format(cluster, listeners.scram), nodes))
    return nodes


def _with_doors(listeners: str, port: int, doors: Mapping[str, Door]) -> dict[str, str]:
    return {
        "listeners": listeners + "".join(f",{name}://127.0.0.1:{door.port}" for name, door in doors.items()),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"
        + "".join(f",{name}://127.0.0.1:{door.told}" for name, door in doors.items()),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in (*doors, "PLAINTEXT", "CONTROLLER")),
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _known_brokers(bootstrap: str) -> int:
    """How many brokers the cluster says it has; 0 while it cannot say."""

    async def ask(admin: AIOKafkaAdminClient) -> int:
        return len((await admin.describe_cluster())["brokers"])

    return _ask(bootstrap, ask, 0)


def _behind(bootstrap: str) -> Sequence[str]:
    """Partitions that have fewer copies in sync than they have copies."""

    async def ask(admin: AIOKafkaAdminClient) -> Sequence[str]:
        return [
            f"{topic['topic']}/{p['partition']}"
            for topic in await admin.describe_topics()
            for p in topic["partitions"]
            if len(p["isr"]) < len(p["replicas"]) or p["leader"] < 0
        ]

    return _ask(bootstrap, ask, ["all: the cluster does not answer"])


def _ask(bootstrap: str, question: Callable[[AIOKafkaAdminClient], Awaitable[T]], otherwise: T) -> T:
    """On a thread: the caller may be in a loop."""

    async def ask() -> T:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=PROBE_TIMEOUT_MS)
        try:
            await admin.start()
            return await question(admin)
        except (KafkaError, OSError, TimeoutError):
            return otherwise
        finally:
            await admin.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, ask()).result()
