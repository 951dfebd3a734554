"""Synapse, a Matrix homeserver: rooms are timelines that only grow. https://spec.matrix.org/latest/client-server-api

    GET {url}/_matrix/client/v3/rooms/{room}/messages?dir=f&limit=50&from=t52-54_0_0…
    {"chunk": [{"type": "m.room.message", "event_id": "$mHxm…", "origin_server_ts": 1796119786000,
                "content": {"msgtype": "m.text", "body": …}, …}, …], "start": "t52-54_0_0…", "end": "t102-104_0_0…"}

`end` is the token of the next page, absent where the timeline ends today; the last token that was there finds what is
said later. Who redacts an event takes its content, and leaves {"type": "m.room.redaction", "redacts": "$mHxm…"}.

    GET {url}/_synapse/admin/v2/users?from=0&limit=10
    {"users": [{"name": "@order0000000003:local.test", "displayname": …, …}, …], "next_token": "10", "total": 121}

Both want `Authorization: Bearer …`. Who asks too often is sent away with 429, `Retry-After` and `retry_after_ms`.
"""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from tests.harness import installs
from tests.harness.apis import Record, Served
from tests.harness.processes import free_ports

USER, PASSWORD = "clerk", "opensesame-synapse"
NAME = "local.test"
WHO = {"type": "m.login.password", "identifier": {"type": "m.id.user", "user": USER}, "password": PASSWORD}
LOGIN = "/_matrix/client/v3/login"
CREATE_ROOM = "/_matrix/client/v3/createRoom"
ROOMS = "/_matrix/client/v3/rooms"
EVER = "{per_second: 100000, burst_count: 100000}"
SETTINGS = f"""
server_name: {NAME}
listeners: [{{port: %(port)s, type: http, bind_addresses: [127.0.0.1], resources: [{{names: [client]}}]}}]
database: {{name: sqlite3, args: {{database: homeserver.db}}}}
media_store_path: media
pid_file: homeserver.pid
signing_key_path: signing.key
registration_shared_secret: for-tests-only
macaroon_secret_key: for-tests-only
form_secret: for-tests-only
report_stats: false
trusted_key_servers: []
bcrypt_rounds: 4
rc_message: {EVER}
rc_login: {{address: {EVER}, account: {EVER}, failed_attempts: {EVER}}}
rc_room_creation: {EVER}
"""


SHOWN = ("type", "event_id", "sender", "origin_server_ts", "content")  # the rest of an event changes by itself


class Synapse(Served):
    """Made by `start`. `room`: where messages are said."""

    def __init__(self, directory: Path, port: int) -> None:
        settings = directory / "homeserver.yaml"
        settings.write_text(SETTINGS % {"port": port})
        command = [installs.python("python"), "-m", "synapse.app.homeserver", "-c", str(settings)]
        installs.run("Synapse's keys", [*command, "--generate-keys"], cwd=directory)
        super().__init__(command, port, directory, ready="/health")
        register = [installs.python("register_new_matrix_user"), "-c", str(settings), "--admin"]
        installs.run("Synapse's user", [*register, "-u", USER, "-p", PASSWORD, self.url])
        token = self.ask("POST", LOGIN, json=WHO)["access_token"]
        self.owner.headers["authorization"] = f"Bearer {token}"
        self.room: str = self.ask("POST", CREATE_ROOM, json={"preset": "private_chat"})["room_id"]
        self._sent = 0

    def say(self, text: str) -> str:
        """The id of the event."""
        return self._send(f"{ROOMS}/{quote(self.room)}/send/m.room.message", {"msgtype": "m.text", "body": text})

    def redact(self, event: str) -> str:
        """The id of the event that says so."""
        return self._send(f"{ROOMS}/{quote(self.room)}/redact/{quote(event)}", {})

    def shown(self, event: str) -> Record:
        """What it says of the event today."""
        return picked(self.ask("GET", f"{ROOMS}/{quote(self.room)}/event/{quote(event)}"))

    def add_users(self, names: Iterable[str]) -> None:
        for name in names:
            self.ask("PUT", f"/_synapse/admin/v2/users/@{name}:{NAME}", json={"displayname": name.title()})

    def _send(self, path: str, content: Record) -> str:
        self._sent += 1
        sent: Record = self.ask("PUT", f"{path}/{self._sent}", json=content)
        return str(sent["event_id"])


def picked(event: Record) -> Record:
    return {name: event[name] for name in SHOWN}


def start(directory: Path) -> Synapse:
    return Synapse(directory, free_ports(1)[0])
