"""The event log on Apache Kafka: publisher, subscription, reader and admin of one cluster.

Only aiokafka speaks to the brokers, and only the modules of this package know it.
"""

from contextlib import AbstractAsyncContextManager

from ingest.config.credentials import Credentials
from ingest.eventlog import Admin, Publisher, Reader, StartOffsets, Subscription
from ingest.eventlog.kafka.admin import open_admin
from ingest.eventlog.kafka.cluster import OPEN, Cluster
from ingest.eventlog.kafka.membership import open_subscription
from ingest.eventlog.kafka.publisher import PATIENCE, Patience, open_publisher
from ingest.eventlog.kafka.reader import open_reader
from ingest.eventlog.kafka.watchdog import Times

DEFAULT_TIMES = Times()


class KafkaLog:
    """`bootstrap`: `host:port`, several of them joined by commas. Nothing is connected before a port is opened.
    `credentials`: how the brokers let us in; absent, without TLS and password.
    `patience`: how long a page is waited for. `times`: of memberships in groups."""

    def __init__(
        self,
        bootstrap: str,
        credentials: Credentials = OPEN,
        *,
        patience: Patience = PATIENCE,
        times: Times = DEFAULT_TIMES,
    ) -> None:
        self._cluster = Cluster(bootstrap, credentials)
        self._patience, self._times = patience, times

    def publisher(self) -> AbstractAsyncContextManager[Publisher]:
        return open_publisher(self._cluster, self._patience)

    def subscribe(
        self, topic: str, group: str, start: StartOffsets, *, records: int, bytes: int, wait: float
    ) -> AbstractAsyncContextManager[Subscription]:
        return open_subscription(
            self._cluster, topic, group, start, self._times, records=records, bytes=bytes, wait=wait
        )

    def admin(self) -> AbstractAsyncContextManager[Admin]:
        return open_admin(self._cluster)

    def reader(self) -> AbstractAsyncContextManager[Reader]:
        return open_reader(self._cluster)
