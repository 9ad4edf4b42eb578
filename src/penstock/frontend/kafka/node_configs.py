"""What DescribeConfigs tells of the node: a broker's configs under the names that clients ask for.
All are fixed while the node runs.

The node's own settings are not of Kafka's making and are shown by ``penstock doctor``; here is
what tools look up before they make topics, and the defaults of topics under their broker names."""

from collections.abc import Iterator

from penstock.cursor.group.settings import GroupSettings
from penstock.frontend.kafka.brokers import GROUPS_TOPIC
from penstock.frontend.kafka.configs import TABLE, ConfigEntry, Source, ValueType
from penstock.frontend.kafka.context import KafkaContext
from penstock.model.limits import MINUTE_MS
from penstock.model.replication import IN_SYNC_MIN


def node_entries(context: KafkaContext) -> list[ConfigEntry]:
    """Sorted by name."""
    own = (*_of_node(context), *_of_replicas(context), *_fixed())
    return sorted((*own, *_topic_defaults()), key=lambda entry: entry.name)


def _of_replicas(context: KafkaContext) -> Iterator[ConfigEntry]:
    factor, in_sync_min = context.config.replicas_default, context.config.in_sync_min_default
    for name in (
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
    ):
        yield _entry(
            name,
            str(factor),
            ValueType.SHORT,
            "Number of replicas of each partition. A node by itself has one.",
            Source.NODE,
        )
    for name in (IN_SYNC_MIN, "transaction.state.log.min.isr"):
        yield _entry(
            name,
            str(in_sync_min),
            ValueType.INT,
            "Number of replicas that must be in sync before acks=all is answered.",
            Source.NODE,
        )


def _of_node(context: KafkaContext) -> Iterator[ConfigEntry]:
    config = context.config
    host, port = config.advertised()
    for name in ("broker.id", "node.id"):
        yield _entry(
            name, str(config.node_id), ValueType.INT, "The number of this node.", Source.NODE
        )
    yield _entry(
        "advertised.listeners",
        f"{config.protocol}://{host}:{port}",
        ValueType.STRING,
        "Where clients reach this node.",
        Source.NODE,
    )
    yield _entry(
        "auto.create.topics.enable",
        "true" if config.auto_create else "false",
        ValueType.BOOLEAN,
        "Whether a topic is made when a client first names it.",
        Source.NODE,
    )
    yield _entry("log.dirs", config.log_dir, ValueType.STRING, "Where logs are kept.", Source.NODE)
    yield _entry(
        "num.partitions",
        str(config.partitions_default),
        ValueType.INT,
        "Partitions of a topic that is made without saying how many.",
        Source.NODE,
    )
    groups = context.catalog.find(config.account, config.region, GROUPS_TOPIC)
    if groups is not None:
        yield _entry(
            "offsets.topic.num.partitions",
            str(groups.partition_count),
            ValueType.INT,
            "Partitions of the topic that has the offsets of groups.",
            Source.NODE,
        )


def _fixed() -> Iterator[ConfigEntry]:
    settings = GroupSettings()
    yield _entry("delete.topic.enable", "true", ValueType.BOOLEAN, "Whether topics may be deleted.")
    yield _entry(
        "group.max.session.timeout.ms",
        str(settings.session_ms_max),
        ValueType.INT,
        "The longest session a member may ask for.",
    )
    yield _entry(
        "group.min.session.timeout.ms",
        str(settings.session_ms_min),
        ValueType.INT,
        "The shortest session a member may ask for.",
    )
    yield _entry(
        "offsets.retention.minutes",
        str(settings.offsets_retention_ms // MINUTE_MS),
        ValueType.INT,
        "How long the offsets of a group without members are kept.",
    )


def _topic_defaults() -> Iterator[ConfigEntry]:
    for row in TABLE.values():
        if row.node_name not in (None, IN_SYNC_MIN):
            yield _entry(row.node_name, row.default, row.type, row.documentation)


def _entry(
    name: str,
    value: str | None,
    value_type: ValueType,
    documentation: str,
    source: Source = Source.DEFAULT,
) -> ConfigEntry:
    return ConfigEntry(
        name,
        value,
        source,
        value_type,
        documentation,
        is_read_only=True,
        synonyms=((name, value, source),),
    )
