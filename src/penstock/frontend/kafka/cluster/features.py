"""UpdateFeatures, and the features of Kafka that are in force here, for ApiVersions.

A level says which form of a protocol clients may use. Levels below those listed, and features that
are not listed, are not implemented: ``metadata.version``, ``kraft.version`` and
``eligible.leader.replicas.version`` are about how nodes of Apache Kafka store their own metadata.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import ApiError
from penstock.frontend.kafka.permissions import Operation
from penstock.model.levels import STREAMS_GROUPS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import update_features as wire


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
_TEXT_CHARS_MAX: Final = 100


def features(context: KafkaContext) -> Mapping[str, Feature]:
    """Return the features by name. Streams groups need all nodes of a cluster to know them."""
    if context.level() >= STREAMS_GROUPS:
        return _FEATURES
    return {name: feature for name, feature in _FEATURES.items() if name != _STREAMS}


async def update(call: KafkaCall, request: wire.Request) -> wire.Response:
    """Levels are fixed in each version of the server, so only the level in force can be requested.
    One update that is not possible rejects the whole request."""
    check_cluster(call, Operation.ALTER)
    known = features(call.context)
    async for update in call.slices.each(request.feature_updates):
        feature = known.get(update.feature)
        if feature is None:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"There is no feature {update.feature[:_TEXT_CHARS_MAX]!r}."
                f" Features: {', '.join(known)}.",
            )
        if update.max_version_level != feature.level:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{update.feature} is at level {feature.level} and cannot be set to"
                f" {update.max_version_level}: the level belongs to this version of the server.",
            )
    return wire.Response(
        error_message=None,
        results=[
            wire.UpdatableFeatureResult(update.feature, error_message=None)
            async for update in call.slices.each(request.feature_updates)
        ],
    )
