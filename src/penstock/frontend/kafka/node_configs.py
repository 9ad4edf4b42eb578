"""Configs of brokers under Kafka's names: what DescribeConfigs shows and what requests change.

Read-only values come from the node's own configuration, which has other names (``penstock
doctor``). The configs of ``broker_table.py`` can be changed for one broker and for all."""

from collections.abc import Iterator, Mapping, Sequence

from penstock.cursor.group.settings import GroupSettings
from penstock.cursor.transactions import TIMEOUT_MS_MAX
from penstock.frontend.kafka.broker_table import (
    BROKER_TABLE,
    COMPACTION_BACKOFF,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_IP_MAX,
    TOPIC_NAMES,
    is_read_only,
)
from penstock.frontend.kafka.brokers import GROUPS_TOPIC
from penstock.frontend.kafka.configs import ConfigEntry, Source, Synonym, ValueType, read_by
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.reconfigure import check_lags
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.resources import Edit, store
from penstock.metadata.resource_configs import BROKER, Configs
from penstock.model.limits import MINUTE_MS
from penstock.model.replication import IN_SYNC_MIN
from penstock.wire.kafka.faults import ErrorCode

# ── Changing ─────────────────────────────────────────────────────────────────────────────────


async def alter_brokers(context: KafkaContext, name: str, edit: Edit, *, is_dry: bool) -> None:
    """``name``: this node, or empty for all brokers. Raises Refusal."""
    if name:
        check_is_this_node(context, name)
    if fixed := [one for one in edit.given if is_read_only(one)]:
        raise _invalid(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    if name and IN_SYNC_MIN in edit.given:
        raise Refusal(
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
        raise _invalid(f"The name of a broker is its number, not {name[:100]!r}.")
    if name != str(node_id):
        raise _invalid(f"This is broker {node_id}: send the request to broker {name[:100]}.")


def _read(name: str, text: str | None) -> str:
    """The text to store. Raises Refusal."""
    if text is None:
        raise _invalid(f"{name[:100]} needs a value.")
    row = BROKER_TABLE.get(name)
    if row is None:
        return text  # an unknown name: any text
    try:
        return read_by(row, text)
    except Refusal as refusal:
        raise _invalid(refusal.message) from None  # as in Kafka, for brokers only


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


# ── Showing ──────────────────────────────────────────────────────────────────────────────────


def node_entries(context: KafkaContext) -> list[ConfigEntry]:
    """Every config of this node, sorted by name."""
    dynamic = context.dynamic
    entries = [*_of_node(context), *_of_replicas(context), *_fixed()]
    static = _static(context)
    for row in BROKER_TABLE.values():
        synonyms = list(context.set_for_brokers(row.name))
        if row.default is not None:
            synonyms.append((row.name, *static.get(row.name, (row.default, Source.DEFAULT))))
        if synonyms:
            entries.append(_shown(row.name, synonyms))
    strange = {*dynamic.own, *dynamic.of_all} - BROKER_TABLE.keys()
    entries += [_shown(name, context.set_for_brokers(name)) for name in strange]
    return sorted(entries, key=lambda entry: entry.name)


def entries_of_all(configs: Configs) -> list[ConfigEntry]:
    """What is set for all brokers, sorted by name."""
    return [_shown(name, [(name, configs[name], Source.ALL_BROKERS)]) for name in sorted(configs)]


def _shown(name: str, synonyms: Sequence[Synonym]) -> ConfigEntry:
    """The first of ``synonyms`` applies. Values of unknown names are never shown."""
    row = BROKER_TABLE.get(name)
    if row is None:
        hidden = tuple((name, None, source) for _, _, source in synonyms)
        documentation = "Kept: the name is unknown."
        return ConfigEntry(
            name,
            None,
            synonyms[0][2],
            ValueType.UNKNOWN,
            documentation,
            is_read_only=True,
            is_sensitive=True,
            synonyms=hidden,
        )
    _, value, source = synonyms[0]
    return ConfigEntry(name, value, source, row.type, row.documentation, synonyms=tuple(synonyms))


def _static(context: KafkaContext) -> Mapping[str, tuple[str, Source]]:
    """Values of the node's own configuration for configs that can be changed."""
    config = context.config
    found = {
        IN_SYNC_MIN: config.in_sync_min_default,
        COMPACTION_BACKOFF: config.compaction_check_ms,
        CONNECTIONS_MAX: config.connections_max,
    }
    if config.connections_per_ip_max:
        found[CONNECTIONS_PER_IP_MAX] = config.connections_per_ip_max
    return {name: (str(number), Source.NODE) for name, number in found.items()}


def _of_replicas(context: KafkaContext) -> Iterator[ConfigEntry]:
    for name in (
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
    ):
        yield _entry(
            name,
            str(context.config.replicas_default),
            ValueType.SHORT,
            "Number of replicas of each partition. A node by itself has one.",
            Source.NODE,
        )
    yield _entry(
        "transaction.state.log.min.isr",
        str(context.config.in_sync_min_default),
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
        "listeners",
        f"{config.protocol}://{config.listeners()}",
        ValueType.LIST,
        "Where this node listens for Kafka clients.",
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
    for name, number, documentation in (
        (
            "group.max.session.timeout.ms",
            settings.session_ms_max,
            "The longest session a member may ask for.",
        ),
        (
            "group.min.session.timeout.ms",
            settings.session_ms_min,
            "The shortest session a member may ask for.",
        ),
        (
            "offsets.retention.minutes",
            settings.offsets_retention_ms // MINUTE_MS,
            "How long the offsets of a group without members are kept.",
        ),
        (
            "transaction.max.timeout.ms",
            TIMEOUT_MS_MAX,
            "The longest timeout of a transaction that a producer may ask for.",
        ),
    ):
        yield _entry(name, str(number), ValueType.INT, documentation)


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
