"""How many replicas the partitions of a topic have, and how many of them must be in sync.

A topic says so in its configs: ``replication.factor`` for all of its partitions and
``replication.factor.<index>`` for a partition that was moved to another number of nodes. Both are
left out where the cluster's defaults hold.

``penstock.placement`` is ``manual`` for a topic whose replicas a client has assigned: the manager
then moves its partitions only away from nodes that are drained, not for the sake of balance.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.model.topic import Topic

REPLICATION_FACTOR: Final = "replication.factor"
IN_SYNC_MIN: Final = "min.insync.replicas"
PLACEMENT: Final = "penstock.placement"
AUTO, MANUAL = "auto", "manual"
FACTOR_MAX: Final = 32  # a commit waits for every one of them


def factor_of(topic: Topic, index: int | None, default: int) -> int:
    """Return the number of replicas of a partition; without an index, of partitions to come."""
    if not topic.configs:
        return _bounded(default)  # as a rule; and this is asked of every partition there is
    factor = _number(topic, REPLICATION_FACTOR, default)
    if index is not None:
        factor = _number(topic, _config_of(index), factor)
    return _bounded(factor)


def in_sync_min_of(topic: Topic, factor: int, default: int) -> int:
    """Return how many replicas must be in sync. More than there are would mean that nothing could
    ever be sent."""
    return max(1, min(_number(topic, IN_SYNC_MIN, default), factor))


def is_manual(topic: Topic) -> bool:
    return topic.configs.get(PLACEMENT) == MANUAL


def with_factors(topic: Topic, counts: Mapping[int, int], default: int) -> Topic:
    """Return the topic with these numbers of replicas, by partition."""
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
    value = topic.configs.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:  # values were checked where they came in
        return default
