"""All metrics of Penstock, each declared once with its help text for operators.

Names follow Prometheus: base units last, ``_total`` on counters. A label that clients choose has a
cap where it is counted (``metrics.py``). Series per queue are separate families whose names begin
with ``object``, and only ``/metrics/objects`` returns them: a node with a hundred thousand queues
must stay cheap to scrape, and a sum over a family must not count anything twice.
"""

from enum import StrEnum

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


# Twelve bounds from half a millisecond to five seconds; the last bucket, +Inf, is above them.
BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_FAMILIES: dict[str, Family] = {}


def _declare(kind: MetricKind, name: str, help_text: str, *labels: str) -> Family:
    assert name not in _FAMILIES, "a metric is declared once"
    assert (kind is MetricKind.COUNTER) == name.endswith("_total"), "counters end in _total"
    family = Family(f"penstock_{name}", kind, help_text, labels)
    _FAMILIES[name] = family
    return family


def _counter(name: str, help_text: str, *labels: str) -> Family:
    return _declare(MetricKind.COUNTER, name, help_text, *labels)


def _gauge(name: str, help_text: str, *labels: str) -> Family:
    return _declare(MetricKind.GAUGE, name, help_text, *labels)


def _histogram(name: str, help_text: str, *labels: str) -> Family:
    return _declare(MetricKind.HISTOGRAM, name, help_text, *labels)


# ── Node ─────────────────────────────────────────────────────────────────────────────────────
BUILD_INFO = _gauge("build_info", "Always 1; the labels say what runs.", "version", "python")
START_TIME = _gauge("start_time_seconds", "When this process started, in seconds since 1970.")
READY = _gauge("ready", "1 while the node answers /readyz with 200.")
TROUBLE = _gauge(
    "trouble", "Troubles of one kind that this node reports now; /readyz has their texts.", "kind"
)
EVENT_LOOP_LAG = _histogram(
    "event_loop_lag_seconds", "How late the event loop ran a timer: time requests spend waiting."
)

# ── Requests ─────────────────────────────────────────────────────────────────────────────────
REQUESTS = _counter(
    "requests_total", "Requests answered, by API call and result.", "api", "protocol", "code"
)
REQUEST_DURATION = _histogram(
    "request_duration_seconds",
    "Time from a request being read to its reply, long polls included.",
    "api",
    "protocol",
)
CONNECTIONS = _gauge("connections", "Client connections open now.")
WAITS = _gauge("waits", "Receive calls parked until a message comes.")

# ── Rejections and targets of the frontend ───────────────────────────────────────────────────
FRONTEND_THROTTLED = _counter(
    "frontend_throttled_total",
    "Requests refused because a limit was reached, by which one; own: of the node's own account.",
    "tenant_class",
    "limit",
)
FRONTEND_REPEATED = _counter(
    "frontend_repeated_total", "Requests recognised as sent before and given the first answer."
)
BREAKER_STATE = _gauge(
    "frontend_breaker_state", "0: called as usual, 1: being tried again, 2: cut off.", "target"
)
BULKHEAD_REJECTED = _counter(
    "frontend_bulkhead_rejected_total",
    "Calls not made because the target is full or cut off.",
    "target",
)
BULKHEAD_IN_USE = _gauge("frontend_bulkhead_in_use", "Calls under way to a target.", "target")

# ── Messages ─────────────────────────────────────────────────────────────────────────────────
MESSAGES_SENT = _counter("messages_sent_total", "Messages accepted from producers.")
MESSAGES_RECEIVED = _counter("messages_received_total", "Messages handed to consumers.")
MESSAGES_DELETED = _counter("messages_deleted_total", "Messages acknowledged by consumers.")
MESSAGES_DEAD_LETTERED = _counter(
    "messages_dead_lettered_total", "Messages moved away after too many attempts."
)
MESSAGES_EXPIRED = _counter("messages_expired_total", "Messages dropped at their retention.")
MESSAGES_QUARANTINED = _counter(
    "messages_quarantined_total", "Sealed messages that did not open and were not delivered."
)
DEDUP_HITS = _counter("dedup_hits_total", "Messages recognised as sent before and not stored.")
BYTES_IN = _counter("bytes_in_total", "Bytes of message bodies and attributes accepted.")
BYTES_OUT = _counter("bytes_out_total", "Bytes of message bodies and attributes handed out.")

# ── Queues, summed over this node ────────────────────────────────────────────────────────────
QUEUES = _gauge("queues", "Queues this node knows.")
QUEUE_MESSAGES = _gauge("queue_messages", "Messages in all queues of this node.", "state")
QUEUE_OLDEST_AGE = _gauge(
    "queue_oldest_message_age_seconds", "Age of the oldest message in any queue of this node."
)

# ── Log and disk ─────────────────────────────────────────────────────────────────────────────
APPEND_DURATION = _histogram(
    "log_append_duration_seconds", "Time from an append to its durability, sync included."
)
FSYNC_DURATION = _histogram("log_fsync_duration_seconds", "Time of one sync of a log to disk.")
LOG_SIZE = _gauge("log_size_bytes", "Bytes of all logs on this node.")
LOG_WRITTEN = _counter("log_written_bytes_total", "Bytes appended to logs.")
DISK_FREE = _gauge("disk_free_bytes", "Bytes free where the data folder is.")
TLS_EXPIRY = _gauge(
    "tls_certificate_expiry_timestamp_seconds", "When the certificate in use ends, as a Unix time."
)
INTERNAL_TLS_EXPIRY = _gauge(
    "internal_tls_certificate_expiry_timestamp_seconds",
    "When the certificate shown to other nodes ends, as a Unix time.",
)
SCRUB_ROUNDS = _counter("scrub_rounds_total", "Times that all logs of this node were read over.")
SCRUBBED = _counter("scrubbed_bytes_total", "Bytes of logs that were read over for damage.")
SCRUB_DAMAGES = _counter("scrub_damages_total", "Logs in which reading over has found damage.")
PARTITIONS_DAMAGED = _gauge("partitions_damaged", "Partitions closed because their log is damaged.")

# ── Metadata service ─────────────────────────────────────────────────────────────────────────
METADATA_STALENESS = _gauge(
    "metadata_staleness_seconds", "For how long this node may have missed changes of metadata."
)
METADATA_TOPICS = _gauge("metadata_topics", "Topics in the catalog of the metadata service.")
METADATA_HELD = _gauge("metadata_held_topics", "Topics that this metadata node has in memory.")
METADATA_WATCHERS = _gauge("metadata_watchers", "Watches of other nodes that wait for a change.")
METADATA_FORWARDED = _counter(
    "metadata_forwarded_total", "Questions handed on to the metadata node that has the answer."
)
METADATA_FALLBACKS = _counter(
    "metadata_fallbacks_total",
    "Questions answered from the store because the node that has the answer was not there.",
)

# ── A node of a cluster: partitions ──────────────────────────────────────────────────────────
# Counts of what a node leads or holds, so that a sum over all nodes counts each once.
PARTITIONS_LED = _gauge("partitions_led", "Partitions that this node leads.")
REPLICAS = _gauge("replicas", "Replicas of partitions on this node, led ones included.")
REPLICAS_HALTED = _gauge(
    "replicas_halted", "Replicas on this node that stopped because something must not be so."
)
PARTITIONS_UNDER_REPLICATED = _gauge(
    "partitions_under_replicated",
    "Partitions led here of which a replica is away or does not have everything.",
)
PARTITIONS_BELOW_MINIMUM = _gauge(
    "partitions_below_minimum",
    "Partitions led here with too few replicas in sync for anything to be sent to them.",
)
CLUSTER_PARTITIONS = _gauge(
    "cluster_partitions",
    "Partitions of the whole cluster, with a leader or without; told by the manager alone.",
    "state",
)
IN_SYNC_CHANGES = _counter(
    "in_sync_changes_total",
    "Replicas that joined or left the in-sync set of a partition led here; refused: changes that"
    " the store did not take.",
    "change",
)
LEADER_EPOCHS = _counter(
    "leader_epochs_total", "Times a partition held here got a new leader epoch, whoever leads it."
)

# ── A node of a cluster: replication ─────────────────────────────────────────────────────────
REPLICA_LAG_RECORDS = _gauge(
    "replica_lag_records", "Records that the furthest follower of anything led here lacks."
)
REPLICA_LAG_SECONDS = _gauge(
    "replica_lag_seconds",
    "For how long the furthest follower of anything led here has not had everything; half a second"
    " is usual.",
)
REPLICA_BEHIND_RECORDS = _gauge(
    "replica_behind_records",
    "Records that whatever here is furthest behind its leader lacks; from feature level 2 on.",
)
REPLICA_FETCHES = _counter(
    "replica_fetches_total",
    "Calls for news of partitions: asked of leaders, unanswered of these, and served to followers.",
    "side",
)
REPLICATED_BYTES = _counter(
    "replicated_bytes_total",
    "Bytes of batches copied from leaders (in), to followers (out).",
    "way",
)
REPLICA_CUTS = _counter(
    "replica_cuts_total",
    "Replicas here that had to give something up: cut to where the leader agrees, or begun anew.",
    "kind",
)
PASSED_ON = _counter(
    "passed_on_total",
    "Calls passed on to the node that leads: done, refused by it, unreachable, or unknown.",
    "outcome",
)
INTERNAL_CONNECTIONS = _gauge(
    "internal_connections",
    "Connections with other nodes, opened by them (in) or here (out).",
    "way",
)

# ── A node of a cluster: the manager ─────────────────────────────────────────────────────────
MANAGER = _gauge("manager", "1 on the node that manages the cluster.")
MANAGER_TENURE = _gauge("manager_tenure_seconds", "For how long this node has managed.")
MANAGER_PASSES = _counter(
    "manager_passes_total", "Times this node as the manager looked at what was due."
)
MANAGER_MOVES = _gauge("manager_moves", "Partitions on the move; told by the manager alone.")
ELECTIONS = _counter(
    "elections_total", "Leaders chosen by this node as the manager, by the reason.", "reason"
)
PARTITION_CHANGES = _counter(
    "partition_changes_total",
    "Other changes of partitions by this node as the manager, by their kind.",
    "kind",
)
FEATURE_LEVEL = _gauge("feature_level", "The cluster's level in force.")
FEATURE_LEVEL_MAX = _gauge("feature_level_max", "The highest level that this node speaks.")

# ── A node of a cluster: the coordination store ──────────────────────────────────────────────
STORE_REVISION = _gauge(
    "store_revision", "Revision of the store that this node has seen of nodes and partitions."
)
STORE_RESYNCS = _counter(
    "store_resyncs_total",
    "Times nodes, partitions or the level were read anew after a watch broke.",
)
STORE_DURATION = _histogram(
    "store_request_duration_seconds", "Time of one request to etcd, by its kind.", "request"
)
LEASE_LEFT = _gauge(
    "lease_left_seconds", "For how long this node is not taken for dead if it is not heard of."
)

# ── Series per queue: only from /metrics/objects ─────────────────────────────────────────────
_QUEUE_LABELS = ("account", "region", "queue")
OBJECT_QUEUE_MESSAGES = _gauge(
    "object_queue_messages", "Messages in one queue.", *_QUEUE_LABELS, "state"
)
OBJECT_QUEUE_OLDEST_AGE = _gauge(
    "object_queue_oldest_message_age_seconds", "Age of its oldest message.", *_QUEUE_LABELS
)
OBJECT_QUEUE_LOG_SIZE = _gauge(
    "object_queue_log_size_bytes", "Bytes of its logs on this node.", *_QUEUE_LABELS
)
OBJECT_QUEUE_WAITS = _gauge(
    "object_queue_waits", "Receive calls parked on this queue.", *_QUEUE_LABELS
)
OBJECT_QUEUE_SENT = _counter(
    "object_queue_messages_sent_total", "Messages accepted for this queue.", *_QUEUE_LABELS
)
OBJECT_QUEUE_RECEIVED = _counter(
    "object_queue_messages_received_total", "Messages handed out by this queue.", *_QUEUE_LABELS
)
OBJECT_QUEUE_DELETED = _counter(
    "object_queue_messages_deleted_total", "Messages acknowledged in this queue.", *_QUEUE_LABELS
)
OBJECT_QUEUE_DEAD_LETTERED = _counter(
    "object_queue_messages_dead_lettered_total",
    "Messages moved away from this queue after too many attempts.",
    *_QUEUE_LABELS,
)
OBJECT_QUEUE_EXPIRED = _counter(
    "object_queue_messages_expired_total",
    "Messages this queue dropped at their retention.",
    *_QUEUE_LABELS,
)

FAMILIES: tuple[Family, ...] = tuple(_FAMILIES.values())
