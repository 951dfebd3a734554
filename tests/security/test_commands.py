"""The command against servers that ask who we are: the file of production, and its secrets as mounted files."""

import json
from pathlib import Path

import pytest

from tests.e2e.command import Engine, Ingest
from tests.harness.fake_api import FakeApi, numbered
from tests.harness.names import unique
from tests.security.conftest import GuardedPostgres
from tests.security.kafka_guarded import PASSWORD, USER, Guarded
from tests.security.test_postgres import with_tls

FILE = """
version: 1
log:
  security:
    protocol: SASL_SSL
    mechanism: SCRAM-SHA-512
    username: {user}
    password: ${{file:{folder}/password}}
    ca: {ca}
sources:
  {source}:
    base_url: {api}
    streams:
      orders: {{path: /orders, records: $.data, id: id, paginate: {{type: next_url, from: $.next}}}}
consumers:
  warehouse: {{kind: store, topics: ["{source}.*"], batch: {{wait: 50ms}}}}
topics: {{partitions: 2, replication: 1, min_insync: 1, durability: relaxed, max_message: 100KB}}
"""


async def test_records_become_rows_over_tls_and_passwords_and_a_wrong_password_is_said(
    guarded: Guarded, guarded_postgres: GuardedPostgres, tmp_path: Path
) -> None:
    plain = await guarded_postgres.server.create_database(unique("commands"))
    ca = guarded_postgres.authority.ca
    log = f"kafka://{guarded.server('SASL')}"
    store = with_tls(plain, sslmode="verify-full", sslrootcert=ca)
    ingest = Ingest(tmp_path, Engine("guarded", {"INGEST_LOG_URL": log, "INGEST_STORE_URL": store}))
    source = unique("shop")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    async with FakeApi() as api:
        api.serve("orders", numbered(50), page_size=20)
        (tmp_path / "ingest.yaml").write_text(
            FILE.format(user=USER, folder=tmp_path, ca=guarded.authority.ca, source=source, api=api.url)
        )
        checked = await ingest("check")
        assert checked.err == ""
        await ingest("migrate")
        await ingest("run", "--source", source, "--once")
        await ingest("consume", "warehouse", "--once")
        events = await ingest("events", "--format", "jsonl")
        found = {str(json.loads(line)["payload"]["id"]) for line in events.out.splitlines()}
        assert found == {str(record["id"]) for record in numbered(50)}

        (tmp_path / "password").write_text("not-the-password")
        for verb in (("run", "--source", source, "--once"), ("consume", "warehouse", "--once")):
            refused = await ingest(*verb, code=2)
            assert "ingest.yaml:8:15: Kafka at localhost:" in refused.err
            assert "does not let us in" in refused.err
            assert "not-the-password" not in refused.err + refused.out
        (tmp_path / "password").unlink()
        checked = await ingest("check")
        assert "password cannot be read: No such file or directory, and is needed to reach Kafka" in checked.err


@pytest.mark.parametrize(
    ("host", "ca", "says"),
    [
        ("localhost", "client", "`sslrootcert` must name the file with the certificate of who signed it"),
        ("127.0.0.1", "ca", "write the host name that it holds"),
    ],
)
async def test_a_database_that_is_not_who_it_should_be_ends_the_command_with_2(
    guarded_postgres: GuardedPostgres, tmp_path: Path, host: str, ca: str, says: str
) -> None:
    trusted = {"ca": guarded_postgres.authority.ca, "client": guarded_postgres.client.cert}[ca]
    store = with_tls(guarded_postgres.server.url, host, sslmode="verify-full", sslrootcert=trusted)
    (tmp_path / "ingest.yaml").write_text("version: 1\n")
    refused = await Ingest(tmp_path, Engine("guarded", {"INGEST_STORE_URL": store}))("migrate", code=2)
    assert says in refused.err
