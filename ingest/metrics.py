"""Every metric, declared once. Labels come from the configuration or small closed sets; never a key, an id, a URL."""

from prometheus_client import Counter, Gauge, Histogram, Info

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
STREAM = ("source", "stream")

build_info = Info("ingest_build", "The program")

# ---- sources
polls = Counter("ingest_source_polls_total", "Runs of a stream by how they ended", (*STREAM, "outcome"))
poll_seconds = Histogram(
    "ingest_source_poll_duration_seconds", "From claiming a stream to its end", STREAM, buckets=SECONDS
)
request_seconds = Histogram("ingest_source_request_seconds", "API latency of one answered try", STREAM, buckets=SECONDS)
pages = Counter("ingest_source_pages_total", "Pages whose cursor was saved", STREAM)
records = Counter("ingest_source_records_total", "Records by what became of them", (*STREAM, "outcome"))
retries = Counter("ingest_source_retries_total", "Tries that failed and were followed by another", STREAM)
waiting = Counter("ingest_source_waiting_seconds_total", "Seconds spent waiting before another try", STREAM)
waiting_until = Gauge("ingest_source_waiting_until_timestamp_seconds", "End of the wait under way, 0: none", STREAM)
breaker_state = Gauge(
    "ingest_source_breaker_state", "Whether the API counts as down: 0 no, 1 it is being tried, 2 yes", ("source",)
)
concurrency = Gauge("ingest_source_concurrency", "How many requests may be under way now", ("source",))
rate = Gauge("ingest_source_rate", "How many requests may leave in a second now, +Inf: any number", ("source",))
slowdowns = Counter("ingest_source_slowdowns_total", "Times that the API throttled us and we slowed down", ("source",))
restarts = Counter("ingest_source_restarts_total", "Listings begun again: a token was refused, a rule says so", STREAM)
gaps = Counter("ingest_source_gaps_total", "Answers left out because `errors` says skip or end", STREAM)
tokens = Counter("ingest_source_tokens_total", "Tokens asked for, by what came of it", ("source", "outcome"))
notices = Counter(
    "ingest_source_notices_total", "Unexpected ways of an API, once a run: disorder, clock_skew …", (*STREAM, "kind")
)
cursor_saved = Gauge("ingest_source_cursor_saved_timestamp_seconds", "When a cursor was saved last", STREAM)

# ---- the log
produced = Counter("ingest_producer_records_total", "Messages by what became of them", ("topic", "outcome"))
produced_bytes = Counter("ingest_producer_bytes_total", "Bytes acknowledged", ("topic",))
ack_seconds = Histogram(
    "ingest_producer_ack_duration_seconds",
    "From publishing a page to its last acknowledgement",
    ("topic",),
    buckets=SECONDS,
)
unacked = Gauge("ingest_producer_unacked_pages", "Pages published and not acknowledged yet", ("topic",))
unacked_records = Gauge("ingest_producer_unacked_records", "Records sent to brokers, not acknowledged", ("topic",))
unacked_bytes = Gauge("ingest_producer_unacked_bytes", "Bytes sent to brokers, not acknowledged", ("topic",))
oldest_unacked = Gauge(
    "ingest_producer_oldest_unacked_timestamp_seconds", "Since when a page waits for the log, 0: none does", ("topic",)
)
producer_rebuilds = Counter("ingest_producer_rebuilds_total", "Kafka producers replaced, by why", ("reason",))
retryable_errors = Counter(
    "ingest_producer_retryable_errors_total", "Failures after which a batch was sent again", ("error",)
)

# ---- consumers
GROUP = ("topic", "group")
consumed = Counter("ingest_consumer_records_total", "Records by what became of them", (*GROUP, "outcome"))
batch_records = Histogram(
    "ingest_consumer_batch_records", "Records of a batch", GROUP, buckets=(1, 10, 100, 500, 1000, 2500, 5000, 10000)
)
write_seconds = Histogram("ingest_sink_write_duration_seconds", "Writing a batch", (*GROUP, "outcome"), buckets=SECONDS)
rebalances = Counter("ingest_consumer_rebalances_total", "Times that partitions were assigned to this member", GROUP)
assigned = Gauge("ingest_consumer_assigned_partitions", "Partitions of this member", GROUP)
rejoins = Counter("ingest_consumer_rejoins_total", "Memberships given up and begun anew", GROUP)
trimmed = Counter(
    "ingest_consumer_offsets_trimmed_total", "Offsets that the log deleted before they were read: lost", GROUP
)
replaced = Counter(
    "ingest_consumer_topics_replaced_total", "Times that a topic turned out to be deleted and made anew", GROUP
)
paused = Gauge("ingest_consumer_paused", "1 while the store does not answer", GROUP)
held = Gauge("ingest_consumer_held_partitions", "Partitions that wait until their dead letters are written", GROUP)
progressed = Gauge("ingest_consumer_last_progress_timestamp_seconds", "When a batch was finished last", GROUP)
lag = Gauge(
    "ingest_consumergroup_lag_records", "Records behind the end of the partition", ("group", "topic", "partition")
)
record_to_row = Histogram(
    "ingest_broker_to_row_latency_seconds",
    "From publishing to the committed row, the oldest of a batch",
    GROUP,
    buckets=SECONDS,
)
dead_letters = Counter("ingest_dlq_records_total", "Dead letters by where and why", ("topic", "stage", "code"))

# ---- jobs, schedules, workers
jobs = Gauge(
    "ingest_jobs",
    "Jobs by state: ready, scheduled, retrying, running, expired (no sign of life), dead",
    ("source", "state"),
)
oldest_ready = Gauge("ingest_job_oldest_ready_seconds", "For how long the oldest job that could run waits", ("source",))
claim_seconds = Histogram(
    "ingest_job_claim_seconds", "Writing down what ended and claiming what is next, one transaction", buckets=SECONDS
)
job_seconds = Histogram("ingest_job_duration_seconds", "One attempt at a job", ("source", "kind"), buckets=SECONDS)
attempts = Counter("ingest_job_attempts_total", "Attempts at jobs by how they ended", ("source", "outcome"))
leases_lost = Counter("ingest_lease_lost_total", "Jobs that this worker lost while it was at them", ("source",))
rescued = Counter(
    "ingest_rescued_total", "Jobs that this worker took back from ones without a sign of life", ("source",)
)
tick_lateness = Histogram(
    "ingest_schedule_tick_lateness_seconds", "From a tick to its job", ("schedule",), buckets=(*SECONDS, 3600)
)
ticks = Counter("ingest_schedule_ticks_total", "Ticks that this process decided, by outcome", ("schedule", "outcome"))
told = Counter("ingest_notify_total", "Messages to `notify`: told, or failed and tried again", ("event", "outcome"))
listen_degraded = Gauge("ingest_notify_degraded", "1 while Postgres does not wake us and jobs are polled for")
sqlite_busy = Counter("ingest_sqlite_busy_retries_total", "Times that another writer of the SQLite file was waited for")
sqlite_wal_bytes = Gauge("ingest_sqlite_wal_bytes", "Size of the WAL of the SQLite file that jobs are in")
oldest_xmin = Gauge(
    "ingest_pg_oldest_xmin_seconds", "Age of the oldest transaction that keeps Postgres from removing dead rows"
)
