"""How one broker is started, killed, paused and started again: as a local Java process, or as a container.

Its address and its data outlive all of these. The jars come from Maven, by tests/kafka/pom.xml, once for a checkout.
"""

import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.harness.installs import REPOSITORY, once, run
from tests.harness.processes import Child, NotStarted, accepts, wait_until

IMAGE = "apache/kafka:4.1.1"
POM = REPOSITORY / "tests" / "kafka" / "pom.xml"
START_TIMEOUT = 90.0  # seconds
STOP_GRACE = 30.0  # seconds before a stop becomes a kill
JVM = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN")


class Broker(Protocol):
    def start(self) -> None:
        """Returns at once; `wait_for_port` waits."""

    def wait_for_port(self) -> None: ...
    def running(self) -> bool: ...
    def last_words(self) -> str: ...
    def ask_to_stop(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def discard(self) -> None: ...


class LocalBroker:
    def __init__(self, file: Path, port: int, properties: Mapping[str, str], java: Sequence[str] = ()) -> None:
        self._file = file
        self._port = port
        self._data = Path(properties["log.dirs"])
        self._child: Child | None = None
        self._java = ["java", *JVM, *java, "-cp", f"{jars()}/*"]
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def format(self, cluster: str, scram: Sequence[str] = ()) -> None:
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._file)]
        command += [part for user in scram for part in ("--add-scram", user)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotStarted(f"Kafka's storage tool failed:\n{done.stdout}{done.stderr}")

    def start(self) -> None:
        log = self._file.with_suffix(".log")
        self._child = Child([*self._java, "kafka.Kafka", str(self._file)], log=log)

    def wait_for_port(self) -> None:
        if self._child is not None:
            self._child.wait_until(lambda: accepts(self._port), timeout=START_TIMEOUT, name="Kafka")

    def running(self) -> bool:
        return self._child is not None and self._child.returncode is None

    def last_words(self) -> str:
        return "" if self._child is None else self._child.last_words()

    def ask_to_stop(self) -> None:
        if self._child is not None:
            self._child.send(signal.SIGTERM)

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(grace=STOP_GRACE)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def pause(self) -> None:
        if self._child is not None:
            self._child.send(signal.SIGSTOP)

    def resume(self) -> None:
        if self._child is not None:
            self._child.send(signal.SIGCONT)

    def discard(self) -> None:
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)


class ContainerBroker:
    def __init__(self, port: int, settings: Mapping[str, str]) -> None:
        from testcontainers.core.container import DockerContainer  # only where an engine answers

        own = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": "1@localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }
        self._port = port
        self._created = False
        self._container = DockerContainer(IMAGE).with_bind_ports(9092, port)
        for name, value in {**settings, **own}.items():
            self._container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)

    def start(self) -> None:
        if self._created:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._created = True

    def wait_for_port(self) -> None:
        wait_until(lambda: accepts(self._port), timeout=START_TIMEOUT, what=self.last_words)

    def running(self) -> bool:
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        return bool(wrapped.status == "running")

    def last_words(self) -> str:
        logs: bytes = self._container.get_wrapped_container().logs(tail=40)
        return logs.decode(errors="replace")

    def ask_to_stop(self) -> None:
        self._container.get_wrapped_container().kill("SIGTERM")

    def stop(self) -> None:
        self._container.get_wrapped_container().stop(timeout=int(STOP_GRACE))

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def discard(self) -> None:
        self._container.stop()


def jars() -> Path:
    """The folder of Kafka's jars, filled by Maven when tests/kafka/pom.xml is new to it."""
    return once("kafka", POM, _maven)


def _maven(libs: Path) -> None:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise NotStarted("Kafka needs Java 17 and Maven: install `default-jre-headless` and `maven`")
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    run("Maven could not fetch Kafka", [*command, f"-DoutputDirectory={libs}"])
