"""ApiVersions: what is served here. The first request of every client, and what it may use of the
protocol is decided by the answer alone: exactly the APIs of ``actions.py`` and the features of
``features.py``, nothing promised."""

import re
from collections.abc import Sequence
from functools import cache

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.features import features
from penstock.wire.kafka.apis import API_VERSIONS, APIS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
    encode_api_versions_response,
)

_SOFTWARE_FROM = 3  # version in which clients say what they are
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?\Z")
_SOFTWARE_CHARS_MAX = 128


async def run(
    context: KafkaContext, call: KafkaCall, asked: ApiVersionsRequest
) -> ApiVersionsResponse:
    if call.version >= _SOFTWARE_FROM:
        software = (asked.client_software_name, asked.client_software_version)
        if not all(map(_is_software, software)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=served())
        call.connection.session["software"] = software
    found = features(context)
    return ApiVersionsResponse(
        api_keys=served(),
        supported_features=[SupportedFeatureKey(name, *levels) for name, levels in found.items()],
        finalized_features_epoch=len(
            found
        ),  # features are added while the node runs, never removed
        finalized_features=[
            FinalizedFeatureKey(name, levels.level, levels.level) for name, levels in found.items()
        ],
    )


def _is_software(text: str) -> bool:
    return len(text) <= _SOFTWARE_CHARS_MAX and _SOFTWARE.match(text) is not None


@cache
def served() -> Sequence[ApiVersion]:
    from penstock.frontend.kafka.actions import ACTIONS  # which itself has this module

    return tuple(
        ApiVersion(api.key, api.advertised_min, api.version_max)
        for api in APIS.values()
        if api.key in ACTIONS
    )


@cache
def encoded_unsupported() -> bytes:
    """The body for a version we do not know: version 0, the error, and all there is instead."""
    return encode_api_versions_response(
        ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=served()), 0
    )


ACTION = KafkaAction(API_VERSIONS, run)
