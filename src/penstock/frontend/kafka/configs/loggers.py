"""Levels of this node's loggers, as configs of resource type 8. They are not stored: after a
restart ``log.level`` of the node's configuration applies again, as in Kafka."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.configs.node_configs import check_is_this_node
from penstock.frontend.kafka.configs.resources import Operation
from penstock.frontend.kafka.configs.topic_configs import ConfigEntry, Source, ValueType
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.incremental_alter_configs import AlterableConfig

log = logging.getLogger(__name__)

ROOT: Final = "root"
# Kafka's names: FATAL is critical in Python, which has nothing below DEBUG.
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "TRACE": 5,
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "FATAL": logging.CRITICAL,
    }
)


def alter_loggers(
    context: KafkaContext, name: str, configs: Iterable[AlterableConfig], *, is_dry: bool
) -> None:
    """Change all levels or none. Raises ApiError."""
    check_is_this_node(context, name)
    found = _loggers()
    wanted = [(found.get(config.name), config.name, _level(config)) for config in configs]
    for logger, logger_name, _ in wanted:
        if logger is None:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Unknown logger {logger_name[:100]!r}: DescribeConfigs lists those of this node.",
            )
    for logger, logger_name, level in () if is_dry else wanted:
        assert logger is not None, "checked above"
        logger.setLevel(level)
        shown = _shown(logger)
        log.warning("logger level changed", extra={"logger": logger_name, "to": shown})


def _level(config: AlterableConfig) -> int:
    operation = config.config_operation
    if operation == Operation.DELETE:
        if config.name == ROOT:
            raise invalid_request("The level of the root logger cannot be deleted.")
        return logging.NOTSET  # the level of the parent logger applies
    if operation != Operation.SET:
        raise invalid_request(
            f"The level of a logger can be set or deleted; operation {operation} is not supported."
        )
    level = LEVELS.get((config.value or "").upper())
    if level is None:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"The level of a logger is one of {', '.join(LEVELS)}, not {config.value!r:.100}.",
        )
    return level


def logger_entries(context: KafkaContext, name: str) -> list[ConfigEntry]:
    """Return all loggers, sorted by name. Raises ApiError."""
    check_is_this_node(context, name)
    documentation = "The lowest level that is logged."
    return [
        ConfigEntry(logger, _shown(found), Source.LOGGER, ValueType.UNKNOWN, documentation)
        for logger, found in sorted(_loggers().items())
    ]


def _loggers() -> Mapping[str, logging.Logger]:
    return {ROOT: logging.getLogger(), **dict(_named())}


def _named() -> Iterator[tuple[str, logging.Logger]]:
    """Return loggers by name, without placeholders."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, logger


def _shown(logger: logging.Logger) -> str:
    level = max(logger.getEffectiveLevel(), LEVELS["TRACE"])
    return max((number, name) for name, number in LEVELS.items() if number <= level)[1]
