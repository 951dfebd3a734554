"""What `make test` does first: see to it that PostgreSQL, PgBouncer, libfaketime, Java, Kafka's jars and the APIs of
tests/harness/apis are there before a test waits for them.

As root on Debian what is missing is installed; elsewhere the message says what to install. PostgreSQL is needed even
where an address of one is in the environment: what kills, copies and promotes servers has its own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from tests.harness import brokers, clock, installs, kafka, pgbouncer, postgres
from tests.harness.processes import NotStarted


def main() -> None:
    needed: list[tuple[Callable[[], object], str]] = [
        (postgres.binaries, "postgresql"),
        (pgbouncer.binary, "pgbouncer"),
        (clock.library, "faketime"),
    ]
    for find, package in needed:
        try:
            find()
        except NotStarted:
            _install(package)
            find()
    if kafka.ADDRESS not in os.environ:
        if shutil.which("java") is None or shutil.which("mvn") is None:
            _install("default-jre-headless", "maven")
        brokers.jars()
    if shutil.which("npm") is None:
        _install("nodejs", "npm")
    installs.fetch()


def _install(*packages: str) -> None:
    """Where that is not ours to do, whoever needs the packages says so next."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=quiet, check=True)


if __name__ == "__main__":
    try:
        main()
    except (NotStarted, subprocess.CalledProcessError) as exc:
        sys.exit(f"tests cannot start: {exc}")
