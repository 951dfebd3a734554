"""The names of what is measured; each is one row of the table of runs."""

POLL = "poll → Kafka"
CONSUME = "Kafka → Postgres"
END_TO_END = "end to end"
EMBEDDED = "end to end, embedded (SQLite)"
REPLAY = "Kafka → Postgres, all duplicates"
SOME_DUPLICATES = "Kafka → Postgres, a duplicate in every batch"
POLL_EVERYTHING = "poll → Kafka, without `incremental` (every id remembered)"
POLL_NOTHING = "start-up alone: poll → Kafka of 10 records"
CONSUME_NOTHING = "start-up alone: Kafka → Postgres of 10 records"

POLL_SMALL, POLL_LARGE = "memory: poll of N", "memory: poll of 5 N"
CONSUME_SMALL, CONSUME_LARGE = "memory: consume of N", "memory: consume of 5 N"

P50, P99 = "latency p50", "latency p99"

DLT_POSTGRES = "dlt merge upsert → Postgres (csv)"
DLT_DUCKDB = "dlt merge upsert → DuckDB (parquet)"
SINGER = "Singer tap | target-postgres"
AIRBYTE = "airbyte-cdk read → stdout"
COPY = "COPY alone (limit)"
PRODUCER_PERF = "Kafka producer-perf-test (limit)"
CONNECT = "Kafka Connect, Debezium JDBC sink"
