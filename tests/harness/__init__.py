"""The real parts that tests talk to: PostgreSQL, Apache Kafka, Datasette, and an HTTP API that misbehaves on order."""
