"""What `make test` does first: see to it that PostgreSQL, PgBouncer, Java and Kafka's jars are there before a test
waits for them.

As root on Debian what is missing is installed; elsewhere the message says what to install. A service whose address is
in the environment needs nothing here.
"""

import os
import shutil
import subprocess
import sys

from tests.harness import brokers, kafka, pgbouncer, postgres
from tests.harness.processes import NotStarted, docker_answers


def main() -> None:
    if postgres.ADDRESS not in os.environ and not docker_answers():
        try:
            postgres.binaries()
        except NotStarted:
            _install("postgresql")
            postgres.binaries()
    try:
        pgbouncer.binary()
    except NotStarted:
        _install("pgbouncer")
        pgbouncer.binary()
    if kafka.ADDRESS not in os.environ:
        if shutil.which("java") is None or shutil.which("mvn") is None:
            _install("default-jre-headless", "maven")
        brokers.jars()


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
