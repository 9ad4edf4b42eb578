"""All metrics of Penstock, each declared once with its help text for operators.

Names follow the rules of Prometheus: the base unit at the end, and ``_total`` for counters. For a
label whose values clients choose, ``metrics.py`` limits the number of series. Series per queue are
separate families whose names begin with ``object``, and only ``/metrics/objects`` returns them: a
node with a hundred thousand queues must stay cheap to scrape, and a sum over a family must not
count anything twice."""

from collections.abc import Sequence
from enum import StrEnum
from functools import partial

import msgspec


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


# One value of a family: its label values in the order of the family's labels, and the number.
Sample = tuple[Sequence[str], float]
# Twelve bounds from half a millisecond to five seconds; the last bucket, +Inf, is above them.
BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_FAMILIES: dict[str, Family] = {}


def _declare(kind: MetricKind, text: str) -> Family:
    """Declare a metric, given as ``name{labels}: help text``."""
    series, _, help_text = text.partition(": ")
    name, _, labels = series.rstrip("}").partition("{")
    assert name not in _FAMILIES, "metric declared twice"
    assert (kind is MetricKind.COUNTER) == name.endswith("_total"), "counters end in _total"
    names = tuple(labels.split(",")) if labels else ()
    family = _FAMILIES[name] = Family(f"penstock_{name}", kind, help_text, names)
    return family


_counter = partial(_declare, MetricKind.COUNTER)
_gauge = partial(_declare, MetricKind.GAUGE)
_histogram = partial(_declare, MetricKind.HISTOGRAM)


# ── Node ─────────────────────────────────────────────────────────────────────────────────────
BUILD_INFO = _gauge("build_info{version,python}: Always 1; the labels are the versions.")
START_TIME = _gauge("start_time_seconds: Start time of this process, as a Unix time.")
READY = _gauge("ready: 1 while /readyz replies 200, else 0.")
TROUBLE = _gauge("trouble{kind}: Number of active problems of one kind; /readyz lists their texts.")
EVENT_LOOP_LAG = _histogram(
    "event_loop_lag_seconds: Delay in seconds of event loop timers; requests wait as long."
)

# ── Requests ─────────────────────────────────────────────────────────────────────────────────
REQUESTS = _counter(
    "requests_total{api,protocol,code}: Requests replied to, by API call and result."
)
REQUEST_DURATION = _histogram(
    "request_duration_seconds{api,protocol}: Seconds from reading a request to its reply, long "
    "polls included."
)
CONNECTIONS = _gauge("connections: Open client connections.")
WAITS = _gauge("waits: Parked long polls: receive calls that wait for a message.")

# ── Rejections and targets of the frontend ───────────────────────────────────────────────────
FRONTEND_THROTTLED = _counter(
    "frontend_throttled_total{tenant_class,limit}: Requests rejected by a limit; tenant_class is"
    " own for the node's own tenant."
)
FRONTEND_REPEATED = _counter(
    "frontend_repeated_total: Retried requests that got the stored reply of the first attempt."
)
BREAKER_STATE = _gauge(
    "frontend_breaker_state{target}: Circuit breaker state: 0 closed, 1 half open, 2 open."
)
BULKHEAD_REJECTED = _counter(
    "frontend_bulkhead_rejected_total{target}: Calls rejected because the target's bulkhead is "
    "full or its circuit breaker is open."
)
BULKHEAD_IN_USE = _gauge("frontend_bulkhead_in_use{target}: Calls in progress to a target.")

# ── Messages ─────────────────────────────────────────────────────────────────────────────────
MESSAGES_SENT = _counter("messages_sent_total: Messages accepted from producers.")
MESSAGES_RECEIVED = _counter("messages_received_total: Messages delivered to consumers.")
MESSAGES_DELETED = _counter("messages_deleted_total: Messages acknowledged by consumers.")
MESSAGES_DEAD_LETTERED = _counter(
    "messages_dead_lettered_total: Messages moved to a dead-letter queue after too many attempts."
)
MESSAGES_EXPIRED = _counter("messages_expired_total: Messages dropped by retention.")
MESSAGES_QUARANTINED = _counter(
    "messages_quarantined_total: Messages not delivered because they could not be decrypted."
)
DEDUP_HITS = _counter("dedup_hits_total: Duplicate messages that were not stored again.")
BYTES_IN = _counter("bytes_in_total: Bytes of message bodies and attributes accepted.")
BYTES_OUT = _counter("bytes_out_total: Bytes of message bodies and attributes delivered.")

# ── Push ─────────────────────────────────────────────────────────────────────────────────────
PUSH_ATTEMPTS = _counter(
    "push_attempts_total{protocol,outcome}: Attempts to push a message to a subscription;"
    " outcome: delivered, retry (failed, will be repeated), dead (failed, the message is in the"
    " dead-letter queue) or dropped (failed, no dead-letter queue took the message)."
)
PUSH_REFUSED = _counter(
    "push_refused_total{reason}: Messages that could not be pushed for a reason that a retry does"
    " not change, such as a missing queue, a denied permission or a forbidden address."
)
PUSH_LOST = _counter(
    "push_lost_total: Messages that retention removed before they were pushed; once for each"
    " subscription with an HTTP endpoint, and once for all queues of an SNS topic that keep up"
    " (with a few events of the server)."
)
PUSH_SIGNATURES = _counter("push_signatures_total: Signatures made for SNS notifications.")
PUSH_DURATION = _histogram(
    "push_duration_seconds{protocol}: Duration in seconds of a push to an endpoint."
)
PUSH_FAN_OUT = _histogram(
    "push_fan_out_seconds: Time in seconds to copy a group of at most 64 messages of an SNS topic"
    " to the subscribed queues."
)
PUSH_IN_FLIGHT = _gauge("push_in_flight: Requests to endpoints that wait for a reply.")
PUSH_WAITING_RETRIES = _gauge("push_waiting_retries: Messages that wait for another attempt.")
PUSH_SLOTS = _gauge(
    "push_slots{which}: Request slots of this node that are held, and subscriptions that are"
    " waiting for a slot."
)
PUSH_BREAKER_OPEN = _gauge("push_breaker_open: Subscriptions whose circuit breaker is open.")
PUSH_OUT_OF_STEP = _gauge(
    "push_out_of_step: Subscribed queues that cannot keep up with their SNS topic."
)

# ── Queues, summed over this node ────────────────────────────────────────────────────────────
QUEUES = _gauge("queues: Number of queues that this node knows.")
QUEUE_MESSAGES = _gauge("queue_messages{state}: Messages in all queues of this node.")
QUEUE_OLDEST_AGE = _gauge(
    "queue_oldest_message_age_seconds: Age in seconds of the oldest message on this node."
)

# ── Log and disk ─────────────────────────────────────────────────────────────────────────────
APPEND_DURATION = _histogram(
    "log_append_duration_seconds: Seconds from an append until it is durable, sync included."
)
FSYNC_DURATION = _histogram("log_fsync_duration_seconds: Seconds that one sync of a log takes.")
LOG_SIZE = _gauge("log_size_bytes: Bytes of all logs on this node.")
LOG_WRITTEN = _counter("log_written_bytes_total: Bytes appended to logs.")
DISK_FREE = _gauge("disk_free_bytes: Free bytes on the disk of the data folder.")
TLS_EXPIRY = _gauge(
    "tls_certificate_expiry_timestamp_seconds: Expiry of the certificate in use, as a Unix time."
)
INTERNAL_TLS_EXPIRY = _gauge(
    "internal_tls_certificate_expiry_timestamp_seconds: Expiry of the certificate shown to other "
    "nodes, as a Unix time."
)
SCRUB_ROUNDS = _counter("scrub_rounds_total: Completed scrub rounds over all logs of this node.")
SCRUBBED = _counter("scrubbed_bytes_total: Bytes of logs that the scrub has read.")
SCRUB_DAMAGES = _counter("scrub_damages_total: Logs in which the scrub found damage.")
PARTITIONS_DAMAGED = _gauge("partitions_damaged: Partitions closed because their log is damaged.")

# ── Metadata service ─────────────────────────────────────────────────────────────────────────
METADATA_STALENESS = _gauge(
    "metadata_staleness_seconds: Seconds during which this node may have missed metadata changes."
)
METADATA_TOPICS = _gauge("metadata_topics: Topics in the catalog of the metadata service.")
METADATA_HELD = _gauge("metadata_held_topics: Topics that this metadata node holds in memory.")
METADATA_WATCHERS = _gauge("metadata_watchers: Open watches of other nodes.")
METADATA_FORWARDED = _counter(
    "metadata_forwarded_total: Requests forwarded to the metadata node that holds the topic."
)
METADATA_FALLBACKS = _counter(
    "metadata_fallbacks_total: Requests served from the store because the node that holds the "
    "topic was unreachable."
)

# ── A node of a cluster: partitions ──────────────────────────────────────────────────────────
# Counts of what a node leads or holds, so that a sum over all nodes counts each once.
PARTITIONS_LED = _gauge("partitions_led: Partitions that this node leads.")
REPLICAS = _gauge("replicas: Replicas on this node, including those of partitions that it leads.")
REPLICAS_HALTED = _gauge(
    "replicas_halted: Replicas on this node that stopped because an invariant was violated."
)
PARTITIONS_UNDER_REPLICATED = _gauge(
    "partitions_under_replicated: Partitions led by this node with at least one replica that is "
    "not in sync."
)
PARTITIONS_BELOW_MINIMUM = _gauge(
    "partitions_below_minimum: Partitions led by this node that reject writes: too few replicas "
    "are in sync."
)
CLUSTER_PARTITIONS = _gauge(
    "cluster_partitions{state}: Partitions of the whole cluster, with and without a leader; "
    "reported by the manager only."
)
IN_SYNC_CHANGES = _counter(
    "in_sync_changes_total{change}: Replicas that joined or left the in-sync set of a partition "
    "led by this node; refused: changes that the store rejected."
)
LEADER_EPOCHS = _counter(
    "leader_epochs_total: New leader epochs of partitions with a replica on this node."
)

# ── A node of a cluster: replication ─────────────────────────────────────────────────────────
REPLICA_LAG_RECORDS = _gauge(
    "replica_lag_records: Largest lag in records of a follower of a partition led by this node."
)
REPLICA_LAG_SECONDS = _gauge(
    "replica_lag_seconds: Largest lag in seconds of a follower of a partition led by this node; "
    "0.5 is normal."
)
REPLICA_BEHIND_RECORDS = _gauge(
    "replica_behind_records: Largest lag in records of a replica on this node; from feature level "
    "2 on."
)
REPLICA_FETCHES = _counter(
    "replica_fetches_total{side}: Replication fetches: sent to leaders (asked), failed "
    "(unanswered), served to followers."
)
REPLICATED_BYTES = _counter(
    "replicated_bytes_total{way}: Bytes of batches copied from leaders (in) or to followers (out)."
)
REPLICA_CUTS = _counter(
    "replica_cuts_total{kind}: Replicas on this node that were truncated to match their leader, or"
    " emptied and rebuilt."
)
PASSED_ON = _counter(
    "passed_on_total{outcome}: Calls forwarded to the partition's leader, by outcome; unknown: the"
    " reply was lost."
)
INTERNAL_CONNECTIONS = _gauge(
    "internal_connections{way}: Connections with other nodes, opened by them (in) or by this node "
    "(out)."
)

# ── A node of a cluster: the manager ─────────────────────────────────────────────────────────
MANAGER = _gauge("manager: 1 on the node that is the manager, else 0.")
MANAGER_TENURE = _gauge("manager_tenure_seconds: Seconds since this node became the manager.")
MANAGER_PASSES = _counter("manager_passes_total: Planning passes of this node as the manager.")
MANAGER_MOVES = _gauge("manager_moves: Partitions being moved; reported by the manager only.")
ELECTIONS = _counter(
    "elections_total{reason}: Leaders elected by this node as the manager, by reason."
)
PARTITION_CHANGES = _counter(
    "partition_changes_total{kind}: Changes of partitions by this node as the manager, except "
    "elections, by kind."
)
FEATURE_LEVEL = _gauge("feature_level: Feature level of the cluster.")
FEATURE_LEVEL_MAX = _gauge("feature_level_max: Highest feature level that this node supports.")

# ── A node of a cluster: the coordination store ──────────────────────────────────────────────
STORE_REVISION = _gauge("store_revision: Latest revision of the store that this node has seen.")
STORE_RESYNCS = _counter(
    "store_resyncs_total: Full reads of nodes, partitions or the feature level after a watch "
    "failed."
)
STORE_DURATION = _histogram(
    "store_request_duration_seconds{request}: Seconds that one request to etcd takes, by kind."
)
LEASE_LEFT = _gauge(
    "lease_left_seconds: Seconds until this node's lease ends; at 0 the node counts as dead."
)

# ── Series per queue: only from /metrics/objects ─────────────────────────────────────────────


def _per_queue(kind: MetricKind, name: str, help_text: str, more: str = "") -> Family:
    return _declare(kind, f"object_queue_{name}{{account,region,queue{more}}}: {help_text}")


_queue_gauge = partial(_per_queue, MetricKind.GAUGE)
_queue_counter = partial(_per_queue, MetricKind.COUNTER)
OBJECT_QUEUE_MESSAGES = _queue_gauge("messages", "Messages in this queue, by state.", ",state")
OBJECT_QUEUE_OLDEST_AGE = _queue_gauge(
    "oldest_message_age_seconds", "Age in seconds of the oldest message."
)
OBJECT_QUEUE_LOG_SIZE = _queue_gauge(
    "log_size_bytes", "Bytes of the logs of this queue on this node."
)
OBJECT_QUEUE_WAITS = _queue_gauge("waits", "Parked long polls on this queue.")
OBJECT_QUEUE_SENT = _queue_counter("messages_sent_total", "Messages accepted for this queue.")
OBJECT_QUEUE_RECEIVED = _queue_counter(
    "messages_received_total", "Messages delivered from this queue."
)
OBJECT_QUEUE_DELETED = _queue_counter(
    "messages_deleted_total", "Messages acknowledged in this queue."
)
OBJECT_QUEUE_DEAD_LETTERED = _queue_counter(
    "messages_dead_lettered_total",
    "Messages moved from this queue to its dead-letter queue after too many attempts.",
)
OBJECT_QUEUE_EXPIRED = _queue_counter(
    "messages_expired_total", "Messages of this queue dropped by retention."
)

FAMILIES: tuple[Family, ...] = tuple(_FAMILIES.values())
