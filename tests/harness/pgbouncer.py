"""PgBouncer in front of a PostgreSQL server, in transaction mode: a connection has another server session every time.

It refuses to run as root, as PostgreSQL does.
"""

import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from tests.harness.postgres import unprivileged
from tests.harness.processes import Child, NotStarted, accepts, free_ports

START_TIMEOUT = 30.0  # seconds


class PgBouncer:
    """Made by `start`."""

    def __init__(self, port: int, home: Path, child: Child) -> None:
        self._port = port
        self._home = home
        self._child = child

    def through(self, url: str) -> str:
        """The address of the same database, by way of PgBouncer."""
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{self._port}"))

    def close(self) -> None:
        self._child.kill()
        shutil.rmtree(self._home, ignore_errors=True)


def binary() -> str:
    """Raises NotStarted when PgBouncer is not installed."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise NotStarted("no PgBouncer found: install the package `pgbouncer`")
    return found


def start(directory: Path, url: str) -> PgBouncer:
    """In front of the server at `url`, whose user and password it uses. Its log goes to `directory`."""
    server = urlsplit(url)
    [port] = free_ports(1)
    user = unprivileged()
    # Not below `directory`: pytest's folders are closed to the other user that it runs as.
    home = Path(tempfile.mkdtemp(prefix="ingest-pgbouncer-"))
    users, file = home / "users.txt", home / "pgbouncer.ini"
    users.write_text(f'"{unquote(server.username or "")}" "{unquote(server.password or "")}"\n')
    file.write_text(f"""
[databases]
* = host={server.hostname} port={server.port or 5432}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
auth_type = plain
auth_file = {users}
max_client_conn = 200
default_pool_size = 30
""")
    for path in (home, users, file):
        if user is not None:
            shutil.chown(path, user)
    child = Child([binary(), str(file)], log=directory / "pgbouncer.log", user=user, cwd=home)
    bouncer = PgBouncer(port, home, child)
    try:
        child.wait_until(lambda: accepts(port), timeout=START_TIMEOUT, name="PgBouncer")
    except BaseException:
        bouncer.close()
        raise
    return bouncer
