"""The features of Kafka that are in force here, for ApiVersions and UpdateFeatures.

A level says which form of a protocol clients may use. Levels below those listed, and features that
are not listed, are not implemented: ``metadata.version``, ``kraft.version`` and
``eligible.leader.replicas.version`` are about how nodes of Apache Kafka store their own metadata.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Feature(NamedTuple):
    lowest: int  # that clients may assume
    level: int  # in force, and the highest


FEATURES: Final[Mapping[str, Feature]] = MappingProxyType(
    {
        "group.version": Feature(1, 1),  # consumer groups of KIP-848
        "share.version": Feature(1, 1),  # share groups
        # With 2, clients raise their epoch with every transaction and leave it to the broker to add
        # partitions; others use the first form.
        "transaction.version": Feature(1, 2),
    }
)
