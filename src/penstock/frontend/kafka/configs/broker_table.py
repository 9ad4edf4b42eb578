"""Broker configs that operators can change while nodes run, one table row each.

Most are defaults of topic configs, under the names in ``node_name`` of ``topic_configs.py``. A
row whose documentation starts with "Kept" is stored and shown, and has no effect.
``metadata/topics/resource_configs.py`` stores and applies changes."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.configs.config_values import (
    INT_MAX,
    Read,
    decimal,
    flag,
    is_address,
    whole,
)
from penstock.frontend.kafka.configs.topic_configs import TABLE, ConfigRow, ValueType
from penstock.model.stream import LONG_MAX

COMPACTION_BACKOFF: Final = "log.cleaner.backoff.ms"
CONNECTIONS_MAX: Final = "max.connections"
CONNECTIONS_PER_IP_MAX: Final = "max.connections.per.ip"
CONNECTIONS_PER_IP: Final = "max.connections.per.ip.overrides"
CONNECTIONS_PER_SECOND: Final = "max.connection.creation.rate"
OVERRIDES_MAX: Final = 1_000  # addresses with their own limit

TOPIC_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {row.node_name: row.name for row in TABLE.values() if row.node_name is not None}
)


_count: Final = whole(0, INT_MAX)


def addresses(text: str) -> Mapping[str, int]:
    """Read connection limits by address: ``10.0.0.7:5,::1:9``. Raises ValueError."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        address, _, count = part.rpartition(":")
        if not is_address(address):
            raise ValueError("a list of ADDRESS:NUMBER with commas between them")
        found[address] = int(_count(count))
    if len(found) > OVERRIDES_MAX:
        raise ValueError(f"a list of at most {OVERRIDES_MAX:,} addresses")
    return found


def _overrides(text: str) -> str:
    return ",".join(f"{address}:{count}" for address, count in addresses(text).items())


def _row(name: str, kind: ValueType, default: str, read: Read, documentation: str) -> ConfigRow:
    return ConfigRow(name, kind, default, None, read, documentation)


def _int(name: str, default: int, documentation: str, *, low: int = 1) -> ConfigRow:
    return _row(name, ValueType.INT, str(default), whole(low, INT_MAX), documentation)


def _long(name: str, default: int | None, documentation: str, *, low: int = 0) -> ConfigRow:
    shown = None if default is None else str(default)
    read = whole(low, LONG_MAX)
    return ConfigRow(name, ValueType.LONG, shown, None, read, documentation)


def _bool(name: str, default: str, documentation: str) -> ConfigRow:
    return _row(name, ValueType.BOOLEAN, default, flag, documentation)


_KEPT_THREADS: Final = "Kept: a node sizes its threads by itself."
_KEPT_CLEANER: Final = "Kept: one log is compacted at a time, in bounded memory."
_KEPT_COORDINATOR: Final = "Kept: a coordinator writes without a buffer of its own."
_KEPT_GROUPS: Final = "Kept: set the config of the group instead."
_KEPT_MOVES: Final = "Kept: moves of replicas are not throttled by rate."
_KEPT_TIERS: Final = "Kept: there is no tiered storage."


def _of_topics() -> Iterator[ConfigRow]:
    for row in TABLE.values():
        if row.node_name is not None:
            yield ConfigRow(row.node_name, row.type, row.default, None, row.read, row.documentation)


_ROWS: Final[tuple[ConfigRow, ...]] = (
    *_of_topics(),
    _long(
        COMPACTION_BACKOFF,
        15_000,
        "How often compacted topics are searched for closed segments to compact.",
        low=10,
    ),
    _int(CONNECTIONS_MAX, INT_MAX, "Connections of Kafka clients open at once; more are rejected."),
    _int(
        CONNECTIONS_PER_IP_MAX,
        INT_MAX,
        "Connections of Kafka clients open at once from one address; more are rejected.",
    ),
    _row(
        CONNECTIONS_PER_IP,
        ValueType.STRING,
        "",
        _overrides,
        "Limits for single addresses: ADDRESS:NUMBER, separated by commas.",
    ),
    _int(
        CONNECTIONS_PER_SECOND,
        INT_MAX,
        "Connections per second that Kafka clients open; more are rejected.",
    ),
    *(
        _int(name, default, _KEPT_THREADS)
        for name, default in (
            ("background.threads", 10),
            ("num.io.threads", 8),
            ("num.network.threads", 3),
            ("num.recovery.threads.per.data.dir", 2),
            ("num.replica.fetchers", 1),
            ("log.cleaner.threads", 1),
        )
    ),
    _long("log.cleaner.dedupe.buffer.size", 134_217_728, _KEPT_CLEANER),
    _int("log.cleaner.io.buffer.size", 524_288, _KEPT_CLEANER, low=0),
    _row(
        "log.cleaner.io.buffer.load.factor",
        ValueType.DOUBLE,
        "0.9",
        decimal(0.0, float("inf")),
        _KEPT_CLEANER,
    ),
    _row(
        "log.cleaner.io.max.bytes.per.second",
        ValueType.DOUBLE,
        "1.7976931348623157E308",
        decimal(0.0, float("inf")),
        _KEPT_CLEANER,
    ),
    *(
        _int(f"group.{kind}.assignment.interval.ms", 0, _KEPT_GROUPS, low=0)
        for kind in ("consumer", "share", "streams")
    ),
    _int("group.coordinator.cached.buffer.max.bytes", 1_048_588, _KEPT_COORDINATOR),
    _int("share.coordinator.cached.buffer.max.bytes", 1_048_588, _KEPT_COORDINATOR),
    _int(
        "producer.id.expiration.ms", 86_400_000, "Kept: idle producers are forgotten after a day."
    ),
    _bool(
        "transaction.partition.verification.enable",
        "true",
        "Kept: records of a transaction are always verified.",
    ),
    _long("leader.replication.throttled.rate", None, _KEPT_MOVES),
    _long("follower.replication.throttled.rate", None, _KEPT_MOVES),
    _long("replica.alter.log.dirs.io.max.bytes.per.second", None, _KEPT_MOVES),
    _bool("follower.fetch.last.tiered.offset.enable", "false", _KEPT_TIERS),
    _int("remote.fetch.max.wait.ms", 500, _KEPT_TIERS),
    _long("remote.list.offsets.request.timeout.ms", 30_000, _KEPT_TIERS, low=1),
    _long("remote.log.index.file.cache.total.size.bytes", 1_073_741_824, _KEPT_TIERS, low=1),
    *(
        _int(f"remote.log.{name}", default, _KEPT_TIERS, low=-1)
        for name, default in (
            ("manager.copier.thread.pool.size", 10),
            ("manager.expiration.thread.pool.size", 10),
            ("manager.follower.thread.pool.size", 2),
            ("reader.threads", 10),
        )
    ),
    _long("remote.log.manager.copy.max.bytes.per.second", LONG_MAX, _KEPT_TIERS, low=1),
    _long("remote.log.manager.fetch.max.bytes.per.second", LONG_MAX, _KEPT_TIERS, low=1),
)

BROKER_TABLE: Final[Mapping[str, ConfigRow]] = MappingProxyType({row.name: row for row in _ROWS})

# Names that cannot be changed while a node runs: those of Apache Kafka 4.3, and its listeners,
# security and plug-ins, which are settings of the node here.
_FIXED_FAMILIES: Final = tuple(
    f"{family}."
    for family in (
        *("alter", "broker", "controller", "delegation", "group", "listener", "metadata"),
        *("metrics", "offsets", "remote", "replica", "sasl", "share", "socket", "ssl"),
        "transaction",
    )
)
_FIXED_NAMES: Final = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
advertised.listeners authorizer.class.name auto.create.topics.enable auto.leader.rebalance.enable
client.quota.callback.class config.providers connection.failed.authentication.delay.ms
connections.max.idle.ms connections.max.reauth.ms controlled.shutdown.enable cordoned.log.dirs
create.topic.policy.class.name default.replication.factor
delete.records.purgatory.purge.interval.requests delete.topic.enable early.start.listeners
fetch.max.bytes fetch.purgatory.purge.interval.requests file.delete.delay.ms
initial.broker.registration.timeout.ms inter.broker.listener.name
kafka.metrics.polling.interval.secs kafka.metrics.reporters
leader.imbalance.check.interval.seconds listeners log.cleaner.enable log.dir
log.dir.failure.timeout.ms log.dirs log.flush.offset.checkpoint.interval.ms
log.flush.scheduler.interval.ms log.flush.start.offset.checkpoint.interval.ms
log.retention.check.interval.ms log.retention.hours log.retention.minutes log.roll.hours
log.roll.jitter.hours max.incremental.fetch.session.cache.slots max.request.partition.size.limit
metric.reporters node.id num.partitions num.replica.alter.log.dirs.threads
offset.metadata.max.bytes principal.builder.class process.roles
producer.purgatory.purge.interval.requests queued.max.request.bytes queued.max.requests
quota.window.num quota.window.size.seconds replication.quota.window.num
replication.quota.window.size.seconds request.timeout.ms security.inter.broker.protocol
security.providers telemetry.max.bytes transactional.id.expiration.ms
"""
_FIXED: Final = frozenset(_FIXED_NAMES.split())


def is_read_only(name: str) -> bool:
    """Return whether a request to set the config is rejected. So are unknown names of these
    families: they may be secrets."""
    return name not in BROKER_TABLE and (name in _FIXED or name.startswith(_FIXED_FAMILIES))
