"""Types of resources that have configs, and the changes that a request makes to one resource."""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from penstock.frontend.kafka.configs.topic_configs import ConfigRow, ValueType
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.model.levels import BROKER_CONFIGS_STORED
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.incremental_alter_configs import AlterableConfig


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    LOGGER = 8  # of a broker
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Edit(NamedTuple):
    given: Mapping[str, str | None]  # by name
    removed: frozenset[str] = frozenset()  # these get their defaults


def unknown_resource(resource_type: int) -> ApiError:
    return invalid_request(f"Resources of type {resource_type} have no configs.")


def check_alterable(resource_type: int) -> None:
    """Raises ApiError for an unknown type."""
    if resource_type not in list(ResourceType):
        raise unknown_resource(resource_type)


def edit_of(
    configs: Iterable[AlterableConfig],
    rows: Mapping[str, ConfigRow],
    current: Callable[[str], str | None],
) -> Edit:
    """Read the operations of an incremental request. ``current``: the value of a list now. Raises
    ApiError."""
    given: dict[str, str | None] = {}
    removed: list[str] = []
    for config in configs:
        operation = config.config_operation
        if operation == Operation.DELETE:
            removed.append(config.name)
        elif operation == Operation.SET:
            given[config.name] = config.value
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            given[config.name] = _changed_list(config, rows.get(config.name), current)
        else:
            raise invalid_request(f"Unknown operation {operation}: use 0 to 3.")
    return Edit(given, frozenset(removed))


def _changed_list(
    config: AlterableConfig, row: ConfigRow | None, current: Callable[[str], str | None]
) -> str:
    """Return the list with the given parts added or removed."""
    name = config.name
    if row is None or row.type is not ValueType.LIST:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} is not a list.")
    if config.value is None:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} needs a value.")
    text = current(name)
    if text is None:
        text = row.default or ""
    parts = [part for part in text.split(",") if part]
    requested = [part.strip() for part in config.value.split(",")]
    if config.config_operation == Operation.APPEND:
        parts += [part for part in requested if part not in parts]
    else:
        parts = [part for part in parts if part not in requested]
    return ",".join(parts)


def check_level(context: KafkaContext) -> None:
    """Raises ApiError if an older node of the cluster could not read stored configs."""
    if not context.dynamic.is_in_force:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"This needs feature level {BROKER_CONFIGS_STORED}: upgrade all nodes, then run"
            " penstock cluster upgrade.",
        )


async def store(
    context: KafkaContext, kind: str, name: str, changes: Mapping[str, str | None], *, is_dry: bool
) -> None:
    """Store the changes that differ from the stored values. Values have been checked. Raises
    ApiError."""
    before = context.dynamic.of(kind, name)
    changed = {key: text for key, text in changes.items() if before.get(key) != text}
    if changed and not is_dry:
        check_level(context)
        await context.dynamic.change(kind, name, changed)
