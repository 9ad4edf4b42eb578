"""UpdateFeatures: the levels of features are fixed in each version of the server, so only the level
in force can be asked for. One update that is not possible rejects the whole request."""

from collections.abc import Mapping

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.features import Feature, features
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

KEY = 57
_TEXT_CHARS_MAX = 100


async def run(
    context: KafkaContext, call: KafkaCall, asked: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    if not on_cluster(context, call, Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return UpdateFeaturesResponse(error_code=code, error_message=code.message)
    known = features(context)
    async for update in call.slices.each(asked.feature_updates):
        wrong = _wrong_with(update, known)
        if wrong is not None:
            code = ErrorCode.INVALID_UPDATE_VERSION
            return UpdateFeaturesResponse(error_code=code, error_message=wrong)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(update.feature, error_message=None)
            async for update in call.slices.each(asked.feature_updates)
        ],
    )


def _wrong_with(update: FeatureUpdateKey, known: Mapping[str, Feature]) -> str | None:
    feature = known.get(update.feature)
    if feature is None:
        names = ", ".join(known)
        return f"There is no feature {update.feature[:_TEXT_CHARS_MAX]!r}. Features: {names}."
    if update.max_version_level != feature.level:
        return (
            f"{update.feature} is at level {feature.level} and cannot be set to"
            f" {update.max_version_level}: the level belongs to this version of the server."
        )
    return None


ACTION = KafkaAction(KEY, run)
