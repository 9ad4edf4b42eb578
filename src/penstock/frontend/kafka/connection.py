"""Handles ApiVersions, SaslHandshake and SaslAuthenticate, the first requests of a connection. Also
counts the entries (array elements) of requests, because a request with many entries counts as
several requests in the rate limit of a tenant."""

import re
from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import Any, get_args, get_type_hints

from msgspec.structs import astuple

from penstock.frontend.kafka.cluster import features
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import error_response
from penstock.model.limits import KAFKA_ENTRIES_PER_REQUEST
from penstock.wire.kafka.apis import APIS, FETCH, PRODUCE, SHARE_FETCH, Api
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchResponse, ShareFetchReply
from penstock.wire.kafka.generated import api_versions as versions_wire
from penstock.wire.kafka.generated import sasl_authenticate as login_wire
from penstock.wire.kafka.generated import sasl_handshake as handshake_wire
from penstock.wire.kafka.primitives import Message

_SOFTWARE_FROM = 3  # the first version with name and version of the client
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?\Z")
_SOFTWARE_CHARS_MAX = 128
_REQUESTS_FROM = 1
_FETCH_ERROR_FROM = 7
FEW = 32
ENTRY_BYTES_MIN = 2  # size of the smallest array element, a text with one letter


async def api_versions(call: KafkaCall, request: versions_wire.Request) -> versions_wire.Response:
    if call.version >= _SOFTWARE_FROM:
        software = (request.client_software_name, request.client_software_version)
        if not all(len(text) <= _SOFTWARE_CHARS_MAX and _SOFTWARE.match(text) for text in software):
            return versions_wire.Response(error_code=ErrorCode.INVALID_REQUEST, api_keys=served())
        call.connection.session["software"] = software
    found = features(call.context)
    return versions_wire.Response(
        api_keys=served(),
        supported_features=[
            versions_wire.SupportedFeatureKey(name, *levels) for name, levels in found.items()
        ],
        # The number of features can be their epoch, because it never decreases.
        finalized_features_epoch=len(found),
        finalized_features=[
            versions_wire.FinalizedFeatureKey(name, levels.level, levels.level)
            for name, levels in found.items()
        ],
    )


@cache
def served() -> Sequence[versions_wire.ApiVersion]:
    return tuple(
        versions_wire.ApiVersion(api.key, api.advertised_min, api.version_max)
        for api in APIS.values()
    )


@cache
def encoded_unsupported() -> bytes:
    """Return the reply, in version 0, to an ApiVersions request of an unknown version."""
    return versions_wire.encode_api_versions_response(
        versions_wire.Response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=served()), 0
    )


async def handshake(call: KafkaCall, request: handshake_wire.Request) -> handshake_wire.Response:
    """Begin a login with the chosen mechanism. The client then sends its tokens in SaslAuthenticate
    requests or, if this request has version 0, in frames without a header."""
    connection, logins = call.connection, call.context.logins
    has_tokens_only = call.version < _REQUESTS_FROM
    code = logins.begin(connection, request.mechanism, has_tokens_only=has_tokens_only)
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        connection.close_after_reply()
    mechanisms = logins.mechanisms(connection)
    return handshake_wire.Response(error_code=code, mechanisms=mechanisms)


async def authenticate(call: KafkaCall, request: login_wire.Request) -> login_wire.Response:
    """Process a login token. If the login is rejected, the connection is closed after the reply."""
    reply = await call.context.logins.take(call.connection, request.auth_bytes)
    if reply.code:
        call.connection.close_after_reply()
    return login_wire.Response(*astuple(reply))  # both have the same fields


def requests_in(request: Any, frame_bytes: int) -> int:
    """Return how many requests this request counts as in the rate limit of its tenant."""
    if frame_bytes < KAFKA_ENTRIES_PER_REQUEST * ENTRY_BYTES_MIN:
        return 1
    return max(1, entries_in(request) // KAFKA_ENTRIES_PER_REQUEST)


def entries_in(message: Message) -> int:
    """Return the number of elements in all innermost arrays of a message."""
    total = 0
    for name in _structs_of(type(message)):
        inner = getattr(message, name)
        total += 0 if inner is None else entries_in(inner)
    for name in _arrays_of(type(message)):
        elements = getattr(message, name)
        if not elements:
            continue
        if isinstance(elements[0], Message) and _arrays_of(type(elements[0])):
            is_few = len(elements) <= FEW
            found = sum(map(entries_in, elements)) if is_few else _entries_in(elements)
            total += found or len(elements)
        else:
            total += len(elements)
    return total


def _entries_in(messages: Sequence[Message]) -> int:
    """Return the sum of ``entries_in`` for messages of one class. Messages with one array, such as
    topics with partitions, need no call per message: 10,000 calls would take 12 ms."""
    names = _arrays_of(type(messages[0]))
    arrays = [array for array in map(attrgetter(names[0]), messages) if array]
    first = arrays[0][0] if arrays else None
    if len(names) > 1 or (isinstance(first, Message) and _arrays_of(type(first))):
        return sum(map(entries_in, messages))
    return sum(map(len, arrays))


@cache
def _arrays_of(kind: type[Message]) -> tuple[str, ...]:
    notes = kind.__annotations__
    return tuple(name for name in kind.__struct_fields__ if "Sequence[" in str(notes.get(name)))


@cache
def _structs_of(kind: type[Message]) -> tuple[str, ...]:
    return tuple(
        name
        for name, hint in get_type_hints(kind).items()
        if any(
            isinstance(one, type) and issubclass(one, Message) for one in (hint, *get_args(hint))
        )
        and name not in _arrays_of(kind)
    )


def rejection(api: Api, version: int, message: str) -> Any:
    """Return a reply with INVALID_REQUEST, or None if the API's reply has no field for errors."""
    code = ErrorCode.INVALID_REQUEST
    if api.key == FETCH:
        return FetchResponse((), error_code=code) if version >= _FETCH_ERROR_FROM else None
    if api.key == SHARE_FETCH:
        return ShareFetchReply(error_code=code, error_message=message)
    if api.key == PRODUCE:
        return None
    hint = get_type_hints(api.response_class(), include_extras=True).get("error_code")
    if hint is None:
        return None
    first, _, last = str(hint.__metadata__[1]).partition("-")  # "2", "2-7" or "2+"
    version_max = version if first.endswith("+") else int(last or first)
    is_carried = int(first.rstrip("+")) <= version <= version_max
    return error_response(api, code, message) if is_carried else None
