"""The configs of brokers under Kafka's names, and the log levels of a broker.

Read-only configs show settings of the node, which have other names in its configuration file. The
configs of ``BROKER_TABLE`` can be changed while nodes run, for one broker or for all brokers. Most
of them are defaults of topic configs (``node_name`` in ``topic_configs.py``). Configs documented as
"No effect" are stored and shown, because tools compare what they set with what they see."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.transactions import TIMEOUT_MS_MAX
from penstock.frontend.kafka.configs import rows
from penstock.frontend.kafka.configs.topic_configs import TABLE, check_lags, set_for_brokers
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.frontend.kafka.ports.cluster import GROUPS_TOPIC
from penstock.metadata.topics.resource_configs import BROKER, Configs
from penstock.model.limits import MINUTE_MS
from penstock.model.replication import IN_SYNC_MIN
from penstock.model.stream import LONG_MAX
from penstock.wire.kafka.generated.incremental_alter_configs import AlterableConfig

log = logging.getLogger("penstock.frontend.kafka.configs.loggers")

COMPACTION_BACKOFF: Final = "log.cleaner.backoff.ms"
CONNECTIONS_MAX: Final = "max.connections"
CONNECTIONS_PER_IP_MAX: Final = "max.connections.per.ip"
CONNECTIONS_PER_IP: Final = "max.connections.per.ip.overrides"
CONNECTIONS_PER_SECOND: Final = "max.connection.creation.rate"
OVERRIDES_MAX: Final = 1_000  # addresses with their own limit

TOPIC_NAMES: Final[Mapping[str, str]] = {
    row.node_name: row.name for row in TABLE.values() if row.node_name is not None
}
_count: Final = rows.whole(0, rows.INT_MAX)
_OF_TOPICS: Final = {
    node_name: replace(TABLE[name], name=node_name, node_name=None)
    for node_name, name in TOPIC_NAMES.items()
}
_READ_ONLY: Final = rows.table(
    """\
broker.id | int | -
node.id | int | -
    The number of this node.
advertised.listeners | string | -
    Address at which clients reach this node.
listeners | list | -
    Address at which this node listens for Kafka clients.
auto.create.topics.enable | boolean | -
    Whether a topic is created when a client first names it.
log.dirs | string | -
    Data folder.
num.partitions | int | -
    Default partition count of new topics.
offsets.topic.num.partitions | int | -
    Number of partitions of the topic that stores the offsets of groups.
default.replication.factor | short | -
offsets.topic.replication.factor | short | -
transaction.state.log.replication.factor | short | -
    Number of replicas of each partition. Without a cluster it is 1.
transaction.state.log.min.isr | int | -
    Number of replicas that must be in sync for acks=all.
delete.topic.enable | boolean | -
    Whether topics may be deleted.
group.max.session.timeout.ms | int | -
    Longest session timeout that a member may request.
group.min.session.timeout.ms | int | -
    Shortest session timeout that a member may request.
offsets.retention.minutes | int | -
    Time for which the offsets of a group without members are kept.
transaction.max.timeout.ms | int | -
    Longest transaction timeout that a producer may request.
"""
)
# Configs that cannot be changed while a node runs: the read-only configs of Apache Kafka 4.3, and
# those of listeners, security and plug-ins, which are settings of the node in Penstock.
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
# Log levels are configs of resource type 8. They are not stored: after a restart ``log.level`` of
# the node's configuration applies again, as in Kafka.
ROOT: Final = "root"
# Kafka's level names. Python has no level below DEBUG, and calls FATAL critical.
LEVELS: Final[Mapping[str, int]] = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def addresses(text: str) -> Mapping[str, int]:
    """Return connection limits by address, parsed from a text such as ``10.0.0.7:5,::1:9``."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        address, _, count = part.rpartition(":")
        if not rows.is_address(address):
            raise ValueError("the value must be a comma-separated list of ADDRESS:NUMBER")
        found[address] = int(_count(count))
    if len(found) > OVERRIDES_MAX:
        raise ValueError(f"the value must be a list of at most {OVERRIDES_MAX:,} addresses")
    return found


def _overrides(text: str) -> str:
    return ",".join(f"{address}:{count}" for address, count in addresses(text).items())


_OWN: Final = rows.table(
    f"""\
{COMPACTION_BACKOFF} | long 10.. | 15000
    Interval at which compacted topics are checked for segments to compact, in milliseconds.
{CONNECTIONS_MAX} | int 1.. | {rows.INT_MAX}
    Maximum number of open connections of Kafka clients; more are rejected.
{CONNECTIONS_PER_IP_MAX} | int 1.. | {rows.INT_MAX}
    Maximum number of open connections of Kafka clients from one address; more are rejected.
{CONNECTIONS_PER_IP} | string overrides |
    Maximum numbers of connections from single addresses: ADDRESS:NUMBER, separated by commas.
{CONNECTIONS_PER_SECOND} | int 1.. | {rows.INT_MAX}
    Maximum number of new connections of Kafka clients per second; more are rejected.
background.threads | int 1.. | 10
num.io.threads | int 1.. | 8
num.network.threads | int 1.. | 3
num.recovery.threads.per.data.dir | int 1.. | 2
num.replica.fetchers | int 1.. | 1
log.cleaner.threads | int 1.. | 1
    No effect: a node chooses the number of its threads.
log.cleaner.dedupe.buffer.size | long | 134217728
log.cleaner.io.buffer.size | int | 524288
log.cleaner.io.buffer.load.factor | double 0.. | 0.9
log.cleaner.io.max.bytes.per.second | double 0.. | 1.7976931348623157E308
    No effect: one log is compacted at a time, in bounded memory.
group.consumer.assignment.interval.ms | int | 0
group.share.assignment.interval.ms | int | 0
group.streams.assignment.interval.ms | int | 0
    No effect: set the config of the group instead.
group.coordinator.cached.buffer.max.bytes | int 1.. | 1048588
share.coordinator.cached.buffer.max.bytes | int 1.. | 1048588
    No effect: coordinators write without a buffer.
producer.id.expiration.ms | int 1.. | 86400000
    No effect: producer ids expire after one day without records.
transaction.partition.verification.enable | boolean | true
    No effect: partitions of a transaction are always verified.
leader.replication.throttled.rate | long | -
follower.replication.throttled.rate | long | -
replica.alter.log.dirs.io.max.bytes.per.second | long | -
    No effect: moves of replicas are limited by number, not by rate.
follower.fetch.last.tiered.offset.enable | boolean | false
remote.fetch.max.wait.ms | int 1.. | 500
remote.list.offsets.request.timeout.ms | long 1.. | 30000
remote.log.index.file.cache.total.size.bytes | long 1.. | 1073741824
remote.log.manager.copier.thread.pool.size | int -1.. | 10
remote.log.manager.expiration.thread.pool.size | int -1.. | 10
remote.log.manager.follower.thread.pool.size | int -1.. | 2
remote.log.reader.threads | int -1.. | 10
remote.log.manager.copy.max.bytes.per.second | long 1.. | {LONG_MAX}
remote.log.manager.fetch.max.bytes.per.second | long 1.. | {LONG_MAX}
    No effect: there is no tiered storage.
""",
    overrides=_overrides,
)
BROKER_TABLE: Final[rows.Table] = {**_OWN, **_OF_TOPICS}


def is_read_only(name: str) -> bool:
    """Return whether a config cannot be changed while a node runs. This includes unknown names with
    a prefix such as ``ssl.``, because their values may be secrets."""
    return name not in BROKER_TABLE and (name in _FIXED or name.startswith(_FIXED_FAMILIES))


async def alter_brokers(context: KafkaContext, name: str, edit: rows.Edit, *, is_dry: bool) -> None:
    """Change configs of this broker, or of all brokers if ``name`` is empty."""
    if name:
        check_is_this_node(context, name)
    if fixed := [one for one in edit.given if is_read_only(one)]:
        raise invalid_request(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    if name and IN_SYNC_MIN in edit.given:
        raise rows.invalid_config(
            f"{IN_SYNC_MIN} can be set for all brokers or for a topic, not for one broker."
        )
    changes: dict[str, str | None] = dict.fromkeys(edit.removed)
    changes |= {one: _read(one, text) for one, text in edit.given.items()}
    merged = {**context.dynamic.of_all, **context.dynamic.of(BROKER, name), **changes}
    check_lags(
        {TOPIC_NAMES[one]: text for one, text in merged.items() if text and one in TOPIC_NAMES}
    )
    await rows.store(context, BROKER, name, changes, is_dry=is_dry)


def check_is_this_node(context: KafkaContext, name: str) -> None:
    node_id = context.config.node_id
    if not name.isdecimal():
        raise invalid_request(f"Invalid broker {name[:100]!r}: use the number of the broker.")
    if name != str(node_id):
        raise invalid_request(f"This is broker {node_id}: send the request to broker {name[:100]}.")


def _read(name: str, text: str | None) -> str:
    if text is None:
        raise invalid_request(f"The config {name[:100]} needs a value.")
    row = BROKER_TABLE.get(name)
    if row is None:
        return text  # an unknown name may have any text
    try:
        return rows.read_by(row, text)
    except ApiError as error:
        raise invalid_request(error.message) from None  # the error code that Kafka has for brokers


def node_entries(context: KafkaContext) -> list[rows.ConfigEntry]:
    dynamic, config = context.dynamic, context.config
    # Values of the node's own configuration for configs that can be changed:
    static = {
        IN_SYNC_MIN: config.in_sync_min_default,
        COMPACTION_BACKOFF: config.compaction_check_ms,
        CONNECTIONS_MAX: config.connections_max,
    }
    if config.connections_per_ip_max:
        static[CONNECTIONS_PER_IP_MAX] = config.connections_per_ip_max
    entries = list(_read_only(context))
    for name, row in BROKER_TABLE.items():
        synonyms = set_for_brokers(context, name)
        if name in static:
            synonyms.append((name, str(static[name]), rows.Source.NODE))
        elif row.default is not None:
            synonyms.append((name, row.default, rows.Source.DEFAULT))
        if synonyms:
            entries.append(row.entry(synonyms))
    unknown = {*dynamic.own, *dynamic.of_all} - BROKER_TABLE.keys()
    entries += [_hidden(name, set_for_brokers(context, name)) for name in unknown]
    return sorted(entries, key=lambda entry: entry.name)


def entries_of_all(configs: Configs) -> list[rows.ConfigEntry]:
    entries = []
    for name in sorted(configs):
        synonyms = [(name, configs[name], rows.Source.ALL_BROKERS)]
        row = BROKER_TABLE.get(name)
        entries.append(_hidden(name, synonyms) if row is None else row.entry(synonyms))
    return entries


def _hidden(name: str, synonyms: Sequence[rows.Synonym]) -> rows.ConfigEntry:
    """Return an unknown config without its value, which may be a secret."""
    return rows.ConfigEntry(
        name,
        None,
        synonyms[0][2],
        rows.ValueType.UNKNOWN,
        "No effect: the config is unknown.",
        is_read_only=True,
        is_sensitive=True,
        synonyms=tuple((name, None, source) for _, _, source in synonyms),
    )


def _read_only(context: KafkaContext) -> Iterator[rows.ConfigEntry]:
    config, settings = context.config, GroupSettings()
    host, port = config.advertised()
    groups = context.catalog.find(config.account, config.region, GROUPS_TOPIC)
    of_node: dict[str, object] = {
        "broker.id": config.node_id,
        "node.id": config.node_id,
        "advertised.listeners": f"{config.protocol}://{host}:{port}",
        "listeners": f"{config.protocol}://{config.listeners()}",
        "auto.create.topics.enable": str(config.auto_create).lower(),
        "log.dirs": config.log_dir,
        "num.partitions": config.partitions_default,
        "offsets.topic.num.partitions": None if groups is None else groups.partition_count,
        "default.replication.factor": config.replicas_default,
        "offsets.topic.replication.factor": config.replicas_default,
        "transaction.state.log.replication.factor": config.replicas_default,
        "transaction.state.log.min.isr": config.in_sync_min_default,
    }
    fixed = {
        "delete.topic.enable": "true",
        "group.max.session.timeout.ms": settings.session_ms_max,
        "group.min.session.timeout.ms": settings.session_ms_min,
        "offsets.retention.minutes": settings.offsets_retention_ms // MINUTE_MS,
        "transaction.max.timeout.ms": TIMEOUT_MS_MAX,
    }
    for source, values in ((rows.Source.NODE, of_node), (rows.Source.DEFAULT, fixed)):
        for name, value in values.items():
            if value is not None:
                synonyms = ((name, str(value), source),)
                yield _READ_ONLY[name].entry(synonyms, is_read_only=True)


# ── Loggers ──────────────────────────────────────────────────────────────────────────────────


def alter_loggers(
    context: KafkaContext, name: str, configs: Iterable[AlterableConfig], *, is_dry: bool
) -> None:
    """Set the levels of loggers. If one of the changes is invalid, no level is set."""
    check_is_this_node(context, name)
    found = _loggers()
    wanted = [(found.get(config.name), config.name, _level(config)) for config in configs]
    for logger, logger_name, _ in wanted:
        if logger is None:
            raise rows.invalid_config(
                f"Unknown logger {logger_name[:100]!r}: DescribeConfigs lists all loggers."
            )
    for logger, logger_name, level in () if is_dry else wanted:
        assert logger is not None, "checked above"
        logger.setLevel(level)
        shown = _shown_level(logger)
        log.warning("log level changed", extra={"logger": logger_name, "to": shown})


def _level(config: AlterableConfig) -> int:
    operation = config.config_operation
    if operation == rows.ListOperation.DELETE:
        if config.name == ROOT:
            raise invalid_request("The level of the root logger cannot be deleted.")
        return logging.NOTSET  # the level of the parent logger applies
    if operation != rows.ListOperation.SET:
        raise invalid_request(
            f"The level of a logger can be set or deleted; operation {operation} is not supported."
        )
    level = LEVELS.get((config.value or "").upper())
    if level is None:
        raise rows.invalid_config(
            f"The level of a logger must be one of {', '.join(LEVELS)}, not {config.value!r:.100}."
        )
    return level


def logger_entries(context: KafkaContext, name: str) -> list[rows.ConfigEntry]:
    check_is_this_node(context, name)
    documentation = "The lowest level that is logged."
    return [
        rows.ConfigEntry(
            logger, _shown_level(found), rows.Source.LOGGER, rows.ValueType.UNKNOWN, documentation
        )
        for logger, found in sorted(_loggers().items())
    ]


def _loggers() -> Mapping[str, logging.Logger]:
    named = list(logging.root.manager.loggerDict.items())
    found = {name: logger for name, logger in named if isinstance(logger, logging.Logger)}
    return {ROOT: logging.getLogger(), **found}


def _shown_level(logger: logging.Logger) -> str:
    level = max(logger.getEffectiveLevel(), LEVELS["TRACE"])
    return max((number, name) for name, number in LEVELS.items() if number <= level)[1]
