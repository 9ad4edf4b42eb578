"""ApiVersions: the APIs and features that are served. It is the first request of every client, and
clients use only what the reply contains."""

import re
from collections.abc import Sequence
from functools import cache

from penstock.frontend.kafka.cluster.features import features
from penstock.frontend.kafka.context import KafkaCall
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import api_versions as wire

_SOFTWARE_FROM = 3  # the first version with name and version of the client
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?\Z")
_SOFTWARE_CHARS_MAX = 128


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    if call.version >= _SOFTWARE_FROM:
        software = (request.client_software_name, request.client_software_version)
        if not all(map(_is_software, software)):
            return wire.Response(error_code=ErrorCode.INVALID_REQUEST, api_keys=served())
        call.connection.session["software"] = software
    found = features(call.context)
    return wire.Response(
        api_keys=served(),
        supported_features=[
            wire.SupportedFeatureKey(name, *levels) for name, levels in found.items()
        ],
        # Features are added while the node runs, never removed.
        finalized_features_epoch=len(found),
        finalized_features=[
            wire.FinalizedFeatureKey(name, levels.level, levels.level)
            for name, levels in found.items()
        ],
    )


def _is_software(text: str) -> bool:
    return len(text) <= _SOFTWARE_CHARS_MAX and _SOFTWARE.match(text) is not None


@cache
def served() -> Sequence[wire.ApiVersion]:
    return tuple(
        wire.ApiVersion(api.key, api.advertised_min, api.version_max) for api in APIS.values()
    )


@cache
def encoded_unsupported() -> bytes:
    """Return the reply to an unknown version: in version 0, with an error and all APIs."""
    return wire.encode_api_versions_response(
        wire.Response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=served()), 0
    )
