"""Handles AlterConfigs, IncrementalAlterConfigs, DescribeConfigs and ListConfigResources, for
topics, groups, brokers, loggers and client metrics.

AlterConfigs replaces all configs of a resource: configs that are not given get their defaults, but
a queue stays a queue. IncrementalAlterConfigs sets or deletes single configs, or adds and removes
values of configs that are lists."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from penstock.frontend.kafka import checks
from penstock.frontend.kafka.configs import broker_configs as brokers
from penstock.frontend.kafka.configs import group_configs as groups
from penstock.frontend.kafka.configs import topic_configs as topics
from penstock.frontend.kafka.configs.rows import ConfigEntry, Edit, ResourceType, Table, edit_of
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, error_fields, invalid_request
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.metadata.topics.resource_configs import BROKER, CLIENT_METRICS, GROUP
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_configs as alter_wire
from penstock.wire.kafka.generated import describe_configs as describe_wire
from penstock.wire.kafka.generated import incremental_alter_configs as incremental_wire
from penstock.wire.kafka.generated import list_config_resources as list_wire

_TYPES_FROM: Final = 1
# Computes the changes of a resource from its part of the request, its table and current configs.
Edits = Callable[[Any, Table, Mapping[str, str]], Edit]


async def replace(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    def edits(resource: Any, _: Table, current: Mapping[str, str]) -> Edit:
        given = {config.name: config.value for config in resource.configs}
        return Edit(given, frozenset(current.keys() - given.keys()))

    kind = alter_wire.AlterConfigsResourceResponse
    return alter_wire.Response(responses=await _alter_all(call, request, edits, kind))


async def change(call: KafkaCall, request: incremental_wire.Request) -> incremental_wire.Response:
    kind = incremental_wire.AlterConfigsResourceResponse
    return incremental_wire.Response(responses=await _alter_all(call, request, edit_of, kind))


async def _alter_all(call: KafkaCall, request: Any, edits: Edits, kind: Any) -> list[Any]:
    twice = checks.repeated((each.resource_type, each.resource_name) for each in request.resources)
    results = []
    async for resource in call.slices.each(request.resources):
        key = (resource.resource_type, resource.resource_name)
        fields: dict[str, Any] = {"error_code": ErrorCode.NONE, "error_message": None}
        try:
            checks.check_not_repeated(key, twice)
            if resource.resource_type == ResourceType.TOPIC:
                checks.check_topic(call, Operation.ALTER_CONFIGS, resource.resource_name)
            elif resource.resource_type == ResourceType.GROUP:
                checks.check_group(call, Operation.ALTER_CONFIGS, resource.resource_name)
            else:
                checks.check_operator(call, Operation.ALTER_CONFIGS)
            if resource.resource_type not in list(ResourceType):
                raise _unknown(resource.resource_type)
            for name in checks.repeated(config.name for config in resource.configs):
                raise invalid_request(f"The config {name} is given more than once.")
            await _alter(call, resource, edits, is_dry=request.validate_only)
        except API_ERRORS as error:
            fields = error_fields(error)
        results.append(kind(*fields.values(), *key))
    return results


def _unknown(resource_type: int) -> ApiError:
    return invalid_request(f"Resources of type {resource_type} have no configs.")


async def _alter(call: KafkaCall, resource: Any, edits: Edits, *, is_dry: bool) -> None:
    context, name = call.context, resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            now_ms, defaults = context.clock.wall_ms(), context.defaults.configs

            def altered(topic: Topic) -> Topic:
                for config in resource.configs:
                    topics.row_of(config.name)
                edit = edits(resource, topics.TABLE, _set_on(topic))
                return topics.with_configs(topic, edit, now_ms=now_ms, defaults=defaults)

            await topics.reconfigure(context, name, altered, is_dry=is_dry)
        case ResourceType.GROUP:
            current = await groups.configs_of(context, name)
            edit = edits(resource, groups.GROUP_TABLE, current)
            await groups.alter_group(context, name, current, edit, is_dry=is_dry)
        case ResourceType.BROKER:
            edit = edits(resource, brokers.BROKER_TABLE, context.dynamic.of(BROKER, name))
            await brokers.alter_brokers(context, name, edit, is_dry=is_dry)
        case ResourceType.CLIENT_METRICS:
            edit = edits(resource, groups.METRICS_TABLE, context.dynamic.of(CLIENT_METRICS, name))
            await groups.alter_metrics(context, name, edit, is_dry=is_dry)
        case _ if isinstance(resource, incremental_wire.AlterConfigsResource):
            brokers.alter_loggers(context, name, resource.configs, is_dry=is_dry)
        case _:
            raise _unknown(resource.resource_type)  # AlterConfigs cannot change loggers


def _set_on(topic: Topic) -> dict[str, str]:
    """Return the topic's configs that AlterConfigs may remove. Internal configs, such as the
    replication factor, are left out."""
    configs = {name: text for name, text in topic.configs.items() if name in topics.TABLE}
    return configs if topic.fsync is None else configs | {topics.FSYNC: topic.fsync.value}


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    results = []
    async for resource in call.slices.each(dict.fromkeys(request.resources)):
        fields: dict[str, Any] = {"error_message": ""}  # not null, as in Kafka
        resource_type, name, shown = resource.resource_type, resource.resource_name, []
        keys = frozenset(resource.configuration_keys or ())
        try:
            entries = await _entries(call, resource_type, name)
            shown = [_shown(one, request) for one in entries if not keys or one.name in keys]
        except API_ERRORS as error:
            fields = error_fields(error)
        result = describe_wire.DescribeConfigsResult(
            **fields, resource_type=resource_type, resource_name=name, configs=shown
        )
        results.append(result)
    return describe_wire.Response(results=results)


async def _entries(call: KafkaCall, resource_type: int, name: str) -> Sequence[ConfigEntry]:
    context = call.context
    if resource_type == ResourceType.TOPIC:
        checks.check_topic(call, Operation.DESCRIBE_CONFIGS, name)
        checks.check_name(name)
        return list(topics.entries_of(context, checks.topic_named(context, name)))
    if resource_type == ResourceType.BROKER:
        checks.check_cluster(call, Operation.DESCRIBE_CONFIGS)
        if not name:
            return brokers.entries_of_all(context.dynamic.of_all)
        brokers.check_is_this_node(context, name)
        return brokers.node_entries(context)
    if resource_type == ResourceType.GROUP:
        checks.check_group(call, Operation.DESCRIBE_CONFIGS, name)
        return groups.group_entries(await groups.configs_of(context, name))
    checks.check_operator(call, Operation.DESCRIBE_CONFIGS)
    if resource_type == ResourceType.LOGGER:
        return brokers.logger_entries(context, name)
    if resource_type == ResourceType.CLIENT_METRICS:
        return groups.metric_entries(context, name)
    raise _unknown(resource_type)


def _shown(
    entry: ConfigEntry, request: describe_wire.Request
) -> describe_wire.DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return describe_wire.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[describe_wire.DescribeConfigsSynonym(*synonym) for synonym in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


async def list_resources(call: KafkaCall, request: list_wire.Request) -> list_wire.Response:
    """List the resources that the caller may describe. Only operators see client metrics."""
    checks.check_cluster(call, Operation.DESCRIBE_CONFIGS)
    if call.version < _TYPES_FROM:
        types = {int(ResourceType.CLIENT_METRICS)}
    else:
        types = set(request.resource_types) or {int(each) for each in ResourceType}
    if not types <= {int(each) for each in ResourceType}:
        return list_wire.Response(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found = [
        list_wire.ConfigResource(name, each)
        for each in ResourceType
        if each in types
        async for name in _names(call, each)
    ]
    return list_wire.Response(config_resources=found)


async def _names(call: KafkaCall, resource_type: ResourceType) -> AsyncIterator[str]:
    stored = call.context.dynamic.stored
    if resource_type is ResourceType.TOPIC:
        async for topic in call.slices.each(checks.topics_shown(call.context)):
            if on_topic(call, Operation.DESCRIBE_CONFIGS, topic.name, topic):
                yield topic.name
    elif resource_type is ResourceType.GROUP:
        async for name in call.slices.each(tuple(stored.names(call.context.account, GROUP))):
            if on_group(call, Operation.DESCRIBE_CONFIGS, name):
                yield name
    elif resource_type is ResourceType.CLIENT_METRICS:
        if call.caller.is_trusted or call.caller.is_operator:
            for name in sorted(stored.names(call.context.config.account, CLIENT_METRICS)):
                yield name
    else:
        for broker in call.context.brokers.all():
            yield str(broker.node_id)
