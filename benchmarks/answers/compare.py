"""Compares two replies field by field, without what must differ: ids, addresses, times, and the
order of lists that have none."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

# Texts for people.
TEXTS: Final = ("error_message", "message")
# What differs between any two systems.
VARIABLE: Final = frozenset(
    ("cluster_id", "topic_id", "host", "port", "throttle_time_ms", "leader_epoch", "member_id",
     "log_append_time_ms", "timestamp", "partition_leader_epoch", "documentation", "producer_id",
     "finalized_features_epoch", "broker_epoch", "client_host", "node_endpoints", "config_type",
     "controller_id", "leader_id", "isr_nodes", "eligible_leader_replicas", "high_watermark",
     "log_end_offset", "last_fetch_timestamp", "last_caught_up_timestamp", "salt", "coordinator")
)  # fmt: skip
# By which field the entries of a list are told apart.
KEYS: Final = (
    *("name", "topic", "topic_name", "api_key", "resource_name", "partition_index", "index"),
    *("partition_id", "node_id", "broker_id", "group_id", "user", "entity_type"),
)
# Of access rules and their resources.
RULE_KEYS: Final = (
    *("resource_type", "resource_name", "pattern_type"),
    *("principal", "operation", "permission_type"),
)


def differences(
    kafka: Any, penstock: Any, ignored: frozenset[str], path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Where two replies differ: path, and both values. Entries of a list go by their names."""
    if isinstance(kafka, dict) and isinstance(penstock, dict):
        for name in kafka:
            if name not in VARIABLE and name not in ignored:
                below = f"{path}.{name}" if path else name
                yield from differences(kafka[name], penstock[name], ignored, below)
        return
    theirs, ours = _by_label(kafka), _by_label(penstock)
    if theirs is None or ours is None:
        if _plain(kafka) != _plain(penstock):
            yield path, _plain(kafka), _plain(penstock)
        return
    for label in [*theirs, *[label for label in ours if label not in theirs]]:
        before, now = theirs.get(label), ours.get(label)
        if before is None or now is None:
            if not label.startswith("penstock."):  # our own configs
                yield f"{path}[{label}]", before and "there", now and "there"
        else:
            yield from differences(before, now, ignored, f"{path}[{label}]")


def is_text(path: str) -> bool:
    return path.rpartition(".")[2] in TEXTS


def _by_label(reply: Any) -> dict[str, Any] | None:
    """The entries of a list of messages by what tells them apart; None for anything else."""
    if not isinstance(reply, list | tuple) or not all(isinstance(one, dict) for one in reply):
        return None
    return {_label(number, item): item for number, item in enumerate(reply)}


def _label(number: int, item: Mapping[str, Any]) -> str:
    rule = [str(item[key]) for key in RULE_KEYS if key in item]
    if rule:
        return " ".join(rule)
    if "entity" in item:  # of a client quota
        parts = sorted(f"{one['entity_type']}={one['entity_name']}" for one in item["entity"])
        return " ".join(parts)
    if "key" in item:
        return str(item["key"])
    name = str(next((item[key] for key in KEYS if item.get(key) not in ("", None)), number))
    return f"{name} ({item['source']})" if "source" in item else name


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | tuple) else value
