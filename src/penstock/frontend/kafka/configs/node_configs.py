"""The configs of brokers under Kafka's names. Read-only values are settings of the node, which have
other names (``penstock doctor``). Those of ``broker_table.py`` can be changed for one broker and
for all."""

from collections.abc import Iterator, Mapping, Sequence

from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.transactions import TIMEOUT_MS_MAX
from penstock.frontend.kafka.configs.altered_topics import check_lags
from penstock.frontend.kafka.configs.broker_table import (
    BROKER_TABLE,
    COMPACTION_BACKOFF,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_IP_MAX,
    TOPIC_NAMES,
    is_read_only,
)
from penstock.frontend.kafka.configs.resources import Edit, store
from penstock.frontend.kafka.configs.topic_configs import (
    ConfigEntry,
    Source,
    Synonym,
    ValueType,
    read_by,
    set_for_brokers,
)
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.frontend.kafka.ports.brokers import GROUPS_TOPIC
from penstock.metadata.topics.resource_configs import BROKER, Configs
from penstock.model.limits import MINUTE_MS
from penstock.model.replication import IN_SYNC_MIN
from penstock.wire.kafka.faults import ErrorCode

# ── Changing ─────────────────────────────────────────────────────────────────────────────────


async def alter_brokers(context: KafkaContext, name: str, edit: Edit, *, is_dry: bool) -> None:
    """``name``: this node, or empty for all brokers. Raises ApiError."""
    if name:
        check_is_this_node(context, name)
    if fixed := [one for one in edit.given if is_read_only(one)]:
        raise invalid_request(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    if name and IN_SYNC_MIN in edit.given:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{IN_SYNC_MIN} can be set for all brokers or for a topic, not for one broker.",
        )
    changes: dict[str, str | None] = dict.fromkeys(edit.removed)
    changes |= {one: _read(one, text) for one, text in edit.given.items()}
    merged = {**context.dynamic.of_all, **context.dynamic.of(BROKER, name), **changes}
    check_lags(
        {TOPIC_NAMES[one]: text for one, text in merged.items() if text and one in TOPIC_NAMES}
    )
    await store(context, BROKER, name, changes, is_dry=is_dry)


def check_is_this_node(context: KafkaContext, name: str) -> None:
    node_id = context.config.node_id
    if not name.isdecimal():
        raise invalid_request(f"The name of a broker is its number, not {name[:100]!r}.")
    if name != str(node_id):
        raise invalid_request(f"This is broker {node_id}: send the request to broker {name[:100]}.")


def _read(name: str, text: str | None) -> str:
    """Return the text to store. Raises ApiError."""
    if text is None:
        raise invalid_request(f"{name[:100]} needs a value.")
    row = BROKER_TABLE.get(name)
    if row is None:
        return text  # an unknown name may have any text
    try:
        return read_by(row, text)
    except ApiError as error:
        raise invalid_request(error.message) from None  # as in Kafka, for brokers only


# ── Showing ──────────────────────────────────────────────────────────────────────────────────


def node_entries(context: KafkaContext) -> list[ConfigEntry]:
    """Return every config of this node, sorted by name."""
    dynamic = context.dynamic
    entries = list(_read_only(context))
    static = _static(context)
    for row in BROKER_TABLE.values():
        synonyms = list(set_for_brokers(context, row.name))
        if row.default is not None:
            synonyms.append((row.name, *static.get(row.name, (row.default, Source.DEFAULT))))
        if synonyms:
            entries.append(row.entry(synonyms))
    unknown = {*dynamic.own, *dynamic.of_all} - BROKER_TABLE.keys()
    entries += [_hidden(name, set_for_brokers(context, name)) for name in unknown]
    return sorted(entries, key=lambda entry: entry.name)


def entries_of_all(configs: Configs) -> list[ConfigEntry]:
    """Return the configs that are set for all brokers, sorted by name."""
    entries = []
    for name in sorted(configs):
        synonyms = [(name, configs[name], Source.ALL_BROKERS)]
        row = BROKER_TABLE.get(name)
        entries.append(_hidden(name, synonyms) if row is None else row.entry(synonyms))
    return entries


def _hidden(name: str, synonyms: Sequence[Synonym]) -> ConfigEntry:
    """Return the entry of an unknown name, whose values are never shown."""
    return ConfigEntry(
        name,
        None,
        synonyms[0][2],
        ValueType.UNKNOWN,
        "Kept: the name is unknown.",
        is_read_only=True,
        is_sensitive=True,
        synonyms=tuple((name, None, source) for _, _, source in synonyms),
    )


def _static(context: KafkaContext) -> Mapping[str, tuple[str, Source]]:
    """Return values of the node's own configuration for configs that can be changed."""
    config = context.config
    found = {
        IN_SYNC_MIN: config.in_sync_min_default,
        COMPACTION_BACKOFF: config.compaction_check_ms,
        CONNECTIONS_MAX: config.connections_max,
    }
    if config.connections_per_ip_max:
        found[CONNECTIONS_PER_IP_MAX] = config.connections_per_ip_max
    return {name: (str(number), Source.NODE) for name, number in found.items()}


def _read_only(context: KafkaContext) -> Iterator[ConfigEntry]:
    config, settings = context.config, GroupSettings()
    host, port = config.advertised()
    groups = context.catalog.find(config.account, config.region, GROUPS_TOPIC)
    offsets_partitions = None if groups is None else groups.partition_count
    replicas = "Number of replicas of each partition. A node by itself has one."
    in_sync = "Number of replicas that must be in sync for acks=all."
    number, text, listed, flag = ValueType.INT, ValueType.STRING, ValueType.LIST, ValueType.BOOLEAN
    of_node: tuple[tuple[str, object, ValueType, str], ...] = (
        ("broker.id", config.node_id, number, "The number of this node."),
        ("node.id", config.node_id, number, "The number of this node."),
        (
            "advertised.listeners",
            f"{config.protocol}://{host}:{port}",
            text,
            "Address at which clients reach this node.",
        ),
        (
            "listeners",
            f"{config.protocol}://{config.listeners()}",
            listed,
            "Address at which this node listens for Kafka clients.",
        ),
        (
            "auto.create.topics.enable",
            str(config.auto_create).lower(),
            flag,
            "Whether a topic is created when a client first names it.",
        ),
        ("log.dirs", config.log_dir, text, "Data folder."),
        (
            "num.partitions",
            config.partitions_default,
            number,
            "Default partition count of new topics.",
        ),
        (
            "offsets.topic.num.partitions",
            offsets_partitions,
            number,
            "Partitions of the topic that has the offsets of groups.",
        ),
        ("default.replication.factor", config.replicas_default, ValueType.SHORT, replicas),
        ("offsets.topic.replication.factor", config.replicas_default, ValueType.SHORT, replicas),
        (
            "transaction.state.log.replication.factor",
            config.replicas_default,
            ValueType.SHORT,
            replicas,
        ),
        ("transaction.state.log.min.isr", config.in_sync_min_default, number, in_sync),
    )
    fixed: tuple[tuple[str, object, ValueType, str], ...] = (
        ("delete.topic.enable", "true", flag, "Whether topics may be deleted."),
        (
            "group.max.session.timeout.ms",
            settings.session_ms_max,
            number,
            "Longest session timeout that a member may request.",
        ),
        (
            "group.min.session.timeout.ms",
            settings.session_ms_min,
            number,
            "Shortest session timeout that a member may request.",
        ),
        (
            "offsets.retention.minutes",
            settings.offsets_retention_ms // MINUTE_MS,
            number,
            "Time for which the offsets of a group without members are kept.",
        ),
        (
            "transaction.max.timeout.ms",
            TIMEOUT_MS_MAX,
            number,
            "Longest transaction timeout that a producer may request.",
        ),
    )
    for source, rows in ((Source.NODE, of_node), (Source.DEFAULT, fixed)):
        for name, value, value_type, documentation in rows:
            if value is not None:
                shown = str(value)
                synonyms = ((name, shown, source),)
                yield ConfigEntry(
                    name,
                    shown,
                    source,
                    value_type,
                    documentation,
                    is_read_only=True,
                    synonyms=synonyms,
                )
