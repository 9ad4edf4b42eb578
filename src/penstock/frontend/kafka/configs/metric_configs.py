"""Configs of client metrics (KIP-714): which clients push which metrics, and how often. They are
only stored and shown, because telemetry is not supported."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.configs.config_values import INT_MAX, whole
from penstock.frontend.kafka.configs.resources import Edit, store
from penstock.frontend.kafka.configs.topic_configs import (
    ConfigEntry,
    ConfigRow,
    Source,
    ValueType,
    read_by,
)
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import invalid_request
from penstock.metadata.topics.resource_configs import CLIENT_METRICS

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
    """Patterns are Java's; they are not compiled, because nothing is matched with them."""
    for part in _listed(text).split(",") if text else ():
        if not (found := _PATTERN.match(part)) or found[1] not in _MATCHED:
            raise ValueError(f"a list of NAME=PATTERN with one of {', '.join(sorted(_MATCHED))}")
    return _listed(text)


_PATTERN: Final = re.compile(r"\s*([a-z_]+)\s*=[^=]+\Z")
_ROWS: Final = (
    ConfigRow(
        INTERVAL,
        ValueType.INT,
        "300000",
        None,
        whole(0, INT_MAX),
        "Interval at which clients push their metrics.",
    ),
    ConfigRow(
        "match", ValueType.LIST, "", None, _patterns, "Clients that push metrics; empty: all."
    ),
    ConfigRow("metrics", ValueType.LIST, "", None, _listed, "Prefixes of the names of metrics."),
)
METRICS_TABLE: Final[Mapping[str, ConfigRow]] = MappingProxyType({row.name: row for row in _ROWS})


async def alter_metrics(context: KafkaContext, name: str, edit: Edit, *, is_dry: bool) -> None:
    """Raises ApiError."""
    if not name:
        raise invalid_request("The name of a client metrics subscription must not be empty.")
    changes: dict[str, str | None] = dict.fromkeys(edit.removed)
    for key, text in edit.given.items():
        row = METRICS_TABLE.get(key)
        if row is None:
            raise invalid_request(f"Unknown client metrics config {key[:100]!r}.")
        changes[key] = _read(row, text)
    await store(context, CLIENT_METRICS, name, changes, is_dry=is_dry)


def _read(row: ConfigRow, text: str | None) -> str:
    """Return the text to store. Raises ApiError."""
    read = read_by(row, text)
    if row.name == INTERVAL and not INTERVAL_MS_MIN <= int(read) <= INTERVAL_MS_MAX:
        # As in Kafka, another code than for a text that is not a number.
        raise invalid_request(
            f"{INTERVAL} is from {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}, not {read}."
        )
    return read


def metric_entries(context: KafkaContext, name: str) -> list[ConfigEntry]:
    """Return all configs of a subscription, sorted by name. Raises ApiError."""
    if not name:
        raise invalid_request("The name of a client metrics subscription must not be empty.")
    configs = context.dynamic.of(CLIENT_METRICS, name)
    return [
        row.entry(
            [(row.name, configs[row.name], Source.CLIENT_METRICS)] if row.name in configs else ()
        )
        for row in _ROWS
    ]
