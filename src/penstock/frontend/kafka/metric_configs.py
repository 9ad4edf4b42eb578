"""Configs of client metrics (KIP-714): which clients are to push which metrics, and how often. They
are kept and shown; no client is asked to push anything, because telemetry is not served."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.config_values import INT_MAX, whole
from penstock.frontend.kafka.configs import ConfigEntry, Source, TopicConfig, ValueType, read_by
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.resources import Edit, store
from penstock.metadata.resource_configs import CLIENT_METRICS
from penstock.wire.kafka.faults import ErrorCode

INTERVAL: Final = "interval.ms"
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000  # as in Kafka
_MATCHED: Final = frozenset(
    (
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)


def _listed(text: str) -> str:
    return ",".join(part.strip() for part in text.split(",") if part.strip())


def _patterns(text: str) -> str:
    """Patterns are Java's and are not compiled here: nothing is matched with them."""
    for part in _listed(text).split(",") if text else ():
        if not (found := _PATTERN.match(part)) or found[1] not in _MATCHED:
            raise ValueError(f"a list of NAME=PATTERN with one of {', '.join(sorted(_MATCHED))}")
    return _listed(text)


_PATTERN: Final = re.compile(r"\s*([a-z_]+)\s*=[^=]+\Z")
_ROWS: Final = (
    TopicConfig(
        INTERVAL,
        ValueType.INT,
        "300000",
        None,
        whole(0, INT_MAX),
        "How often clients push their metrics.",
    ),
    TopicConfig(
        "match", ValueType.LIST, "", None, _patterns, "Which clients are asked; empty: all."
    ),
    TopicConfig("metrics", ValueType.LIST, "", None, _listed, "Prefixes of the names of metrics."),
)
METRICS_TABLE: Final[Mapping[str, TopicConfig]] = MappingProxyType({row.name: row for row in _ROWS})


async def alter_metrics(context: KafkaContext, name: str, edit: Edit, *, is_dry: bool) -> None:
    """Raises Refusal."""
    if not name:
        raise _invalid("The name of a client metrics subscription must not be empty.")
    changes: dict[str, str | None] = dict.fromkeys(edit.removed)
    for key, text in edit.given.items():
        row = METRICS_TABLE.get(key)
        if row is None:
            raise _invalid(f"Unknown client metrics config {key[:100]!r}.")
        changes[key] = _read(row, text)
    await store(context, CLIENT_METRICS, name, changes, is_dry=is_dry)


def _read(row: TopicConfig, text: str | None) -> str:
    """The text to store. Raises Refusal."""
    read = read_by(row, text)
    if row.name == INTERVAL and not INTERVAL_MS_MIN <= int(read) <= INTERVAL_MS_MAX:
        # Another code than for what is not a number, as in Kafka.
        raise _invalid(f"{INTERVAL} is from {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}, not {read}.")
    return read


def metric_entries(context: KafkaContext, name: str) -> list[ConfigEntry]:
    """Sorted by name. Raises Refusal."""
    if not name:
        raise _invalid("The name of a client metrics subscription must not be empty.")
    configs = context.dynamic.of(CLIENT_METRICS, name)
    return [_entry(row, configs.get(row.name)) for row in _ROWS]


def _entry(row: TopicConfig, value: str | None) -> ConfigEntry:
    if value is None:
        return ConfigEntry(row.name, row.default, Source.DEFAULT, row.type, row.documentation)
    source = Source.CLIENT_METRICS
    synonyms = ((row.name, value, source),)
    return ConfigEntry(row.name, value, source, row.type, row.documentation, synonyms=synonyms)


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)
