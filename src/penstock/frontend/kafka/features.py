"""The features of Kafka that are in force here, for ApiVersions and UpdateFeatures.

A level says which form of a protocol clients may use. Levels below those listed, and features that
are not listed, are not implemented: ``metadata.version``, ``kraft.version`` and
``eligible.leader.replicas.version`` are about how nodes of Apache Kafka store their own metadata.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.frontend.kafka.context import KafkaContext
from penstock.model.levels import STREAMS_GROUPS


class Feature(NamedTuple):
    lowest: int  # that clients may assume
    level: int  # in force, and the highest


_STREAMS: Final = "streams.version"

_FEATURES: Final[Mapping[str, Feature]] = MappingProxyType(
    {
        "group.version": Feature(1, 1),  # consumer groups of KIP-848
        "share.version": Feature(1, 1),  # share groups
        _STREAMS: Feature(1, 1),  # streams groups
        # With 2, clients raise their epoch with every transaction and leave it to the broker to add
        # partitions; others use the first form.
        "transaction.version": Feature(1, 2),
    }
)
_WITHOUT_STREAMS: Final = MappingProxyType(
    {name: feature for name, feature in _FEATURES.items() if name != _STREAMS}
)


def features(context: KafkaContext) -> Mapping[str, Feature]:
    """By name. Streams groups need all nodes of a cluster to know them."""
    return _FEATURES if context.level() >= STREAMS_GROUPS else _WITHOUT_STREAMS
