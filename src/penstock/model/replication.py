"""The number of replicas of a topic's partitions, and how many of them must be in sync.

Both are configs of the topic, if they differ from the defaults of the cluster:
``replication.factor``, and ``replication.factor.<index>`` for a partition that differs from its
topic. ``penstock.placement`` is ``manual`` if a client has assigned the replicas: the manager then
moves them only away from drained nodes, not for balance."""

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.model.topic import Topic

REPLICATION_FACTOR: Final = "replication.factor"
IN_SYNC_MIN: Final = "min.insync.replicas"
PLACEMENT: Final = "penstock.placement"
AUTO, MANUAL = "auto", "manual"
FACTOR_MAX: Final = 32  # a commit waits for all replicas


def factor_of(topic: Topic, index: int | None, default: int) -> int:
    """Return the replication factor of a partition, or of new partitions if ``index`` is None."""
    if not topic.configs:
        return _bounded(default)  # the usual case, and this is called for every partition
    factor = _number(topic, REPLICATION_FACTOR, default)
    if index is not None:
        factor = _number(topic, _config_of(index), factor)
    return _bounded(factor)


def in_sync_min_of(topic: Topic, factor: int, default: int) -> int:
    return max(1, min(_number(topic, IN_SYNC_MIN, default), factor))


def is_manual(topic: Topic) -> bool:
    return topic.configs.get(PLACEMENT) == MANUAL


def with_factors(topic: Topic, counts: Mapping[int, int], default: int) -> Topic:
    now = {at: counts.get(at, factor_of(topic, at, default)) for at in range(topic.partition_count)}
    common = factor_of(topic, None, default)
    configs = {
        name: value
        for name, value in topic.configs.items()
        if not name.startswith(f"{REPLICATION_FACTOR}.")
    }
    if len(set(now.values())) == 1 and now[0] != common:
        common = now[0]
        configs[REPLICATION_FACTOR] = str(common)
    configs |= {_config_of(at): str(count) for at, count in now.items() if count != common}
    return msgspec.structs.replace(topic, configs=configs)


def _config_of(index: int) -> str:
    return f"{REPLICATION_FACTOR}.{index}"


def _bounded(factor: int) -> int:
    return max(1, min(factor, FACTOR_MAX))


def _number(topic: Topic, name: str, default: int) -> int:
    try:
        return int(topic.configs.get(name, default))
    except ValueError:  # values are checked when they are set
        return default
