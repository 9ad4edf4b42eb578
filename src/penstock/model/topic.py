"""A topic and the settings of the queue view on it: one frozen value, kept in the catalog."""

from enum import StrEnum
from typing import Any

import msgspec

from penstock.model.names import queue_arn


class Kind(StrEnum):
    STANDARD = "standard"
    FIFO = "fifo"
    STREAM = "stream"  # read by offsets only, until it is opened as a queue


class Fsync(StrEnum):
    """When an append counts as durable: after fdatasync, within an interval, or once written."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class DedupScope(StrEnum):
    QUEUE = "queue"
    GROUP = "messageGroup"


class Redrive(msgspec.Struct, frozen=True):
    """Dead-letter rule: after ``attempts_max`` leases a record moves to ``target_arn``."""

    target_arn: str
    attempts_max: int


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    delay_ms: int = 0
    message_bytes_max: int = 1_048_576
    retention_ms: int = 345_600_000
    wait_ms: int = 0
    lease_ms: int = 30_000
    redrive: Redrive | None = None
    redrive_allow: str | None = None  # JSON text as given, checked when set
    policy: str | None = None  # JSON text as given
    kms_key: str | None = None
    kms_reuse_s: int = 300
    is_sse_managed: bool | None = None  # None: never said; shown as true, done as the node does
    is_content_dedup: bool = False
    dedup_scope: DedupScope = DedupScope.QUEUE  # what is shown
    throughput_limit: str = "perQueue"


class SkippedRow(msgspec.Struct, frozen=True):
    """A row of a coordinator's topic that an operator has told its readers to skip."""

    partition: int
    offset: int
    digest: str  # of the row, so that another row at this offset is not skipped


class Topic(msgspec.Struct, frozen=True, omit_defaults=True):
    topic_id: str  # a re-created topic is another one
    account: str
    region: str
    name: str
    kind: Kind
    partition_count: int
    created_at_ms: int
    modified_at_ms: int
    receipt_key: bytes  # signs this queue's receipts
    fsync: Fsync | None = None  # None: the node's default
    settings: QueueSettings = QueueSettings()
    # The scope in force is the one given at creation; settings.dedup_scope is only what is shown.
    dedup_scope: DedupScope = DedupScope.QUEUE
    tags: dict[str, str] = {}
    configs: dict[str, str] = {}  # stream settings that differ from their defaults, as Kafka names
    source_id: str | None = None  # a share: a lease cursor over that topic, without records here
    deleted_at_ms: int | None = None  # set on a tombstone, which only guards the name for a minute
    skipped_rows: tuple[SkippedRow, ...] = ()  # of the topics that coordinators keep their rows in

    @property
    def is_fifo(self) -> bool:
        return self.kind is Kind.FIFO

    @property
    def is_queue(self) -> bool:
        return self.kind is not Kind.STREAM

    @property
    def is_share(self) -> bool:
        return self.source_id is not None

    @property
    def arn(self) -> str:
        return queue_arn(self.account, self.region, self.name)

    def may_pass_messages_to(self, other: "Topic") -> bool:
        """Return whether the server may move messages from this queue to ``other``: a queue that
        takes messages, of the same tenant, region and kind."""
        return (
            other.is_queue
            and not other.is_share
            and (other.account, other.region, other.kind) == (self.account, self.region, self.kind)
        )

    def with_settings(self, *, now_ms: int, **changes: Any) -> "Topic":
        settings = msgspec.structs.replace(self.settings, **changes)
        return msgspec.structs.replace(self, settings=settings, modified_at_ms=now_ms)


class QueueStats(msgspec.Struct, frozen=True):
    """Counts of one queue, summed over its partitions. Cheap to ask for: nothing is scanned."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_sent_at_ms: int | None = None  # oldest record not yet acknowledged
    log_bytes: int = 0
    sent: int = 0  # since the partition was opened by this process
    received: int = 0
    acked: int = 0
    dead_lettered: int = 0
    expired: int = 0
    waits: int = 0  # parked long polls


class PeekState(StrEnum):
    VISIBLE = "visible"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
