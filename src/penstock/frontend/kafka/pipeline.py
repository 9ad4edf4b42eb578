"""Start reading here. Turns one Kafka frame into the buffers of its reply.

    header → API → caller → decode → handler → encode → throttle → meter

Handlers report errors in fields of the reply. An error that no field can report ends the
connection: a malformed frame, an API or version that is not supported, an unexpected exception
(logged once, with its traceback). ApiVersions in an unknown version gets a reply in version 0, so
that a newer client can choose another version.

The login of the connection decides who the caller is (``login/logins.py``), and the handler decides
what the caller may do (``permissions.py``). A client above its limits gets its reply with a time to
pause, and its next request is not read before that time.

No request blocks the event loop for long: the decoder bounds arrays, handlers work in slices
(``net/slices.py``), and long messages are decoded and encoded in another thread, one at a time. A
request with too many entries (array elements) gets INVALID_REQUEST, or ends the connection if the
reply has no field for errors."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.frontend.kafka.access.quotas import FETCHED, PRODUCED, ClientQuotas
from penstock.frontend.kafka.actions import ACTIONS
from penstock.frontend.kafka.audit import AUDITED, run_audited
from penstock.frontend.kafka.connection import encoded_unsupported, rejection, requests_in
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.login.logins import Login, user_shown
from penstock.model.errors import PenstockError
from penstock.model.file_slice import Piece
from penstock.model.identity import Caller
from penstock.model.limits import CLIENT_NAME_CHARS_MAX, REQUEST_BYTES_MAX
from penstock.net.kafka.listener import Buffer, HangUp, KafkaConnection, Reply
from penstock.net.slices import Turns
from penstock.wire.kafka.apis import (
    API_VERSIONS,
    APIS,
    FETCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SHARE_FETCH,
    Api,
    Codec,
    RequestHeader,
    is_unknown_api_versions,
    parse_request_header,
    response_header,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import encode_fetch_reply, encode_share_fetch_reply
from penstock.wire.kafka.primitives import Malformed, Message, TooManyEntries, UnsupportedVersion
from penstock.wire.kafka.produce import decode_produce_request

log = logging.getLogger("penstock.frontend.kafka")

PROTOCOL: Final = "kafka"
OK: Final = "OK"
HUNG_UP: Final = "HangUp"
FAILED: Final = ErrorCode.UNKNOWN_SERVER_ERROR.name
UNKNOWN_API: Final = "unknown"
BARE: Final = "SaslToken"  # a frame without a header, after SaslHandshake of version 0
ACCOUNTS_MAX: Final = 10_000  # whose contexts are cached; about 1 KB each
BEFORE_LOGIN: Final = frozenset((API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE))
_NOT_LOGGED_IN: Final = Caller("", "")  # has no rights
_RECORD_APIS: Final = frozenset((FETCH, SHARE_FETCH))  # their replies are mostly records
_PRODUCE_KEY: Final = PRODUCE.to_bytes(2, "big")
# Longer requests are decoded in a thread. For Produce the number of partitions decides.
DECODED_ASIDE_BYTES: Final = 16_384
DECODED_AT_ONCE_MAX: Final = 1_000  # partitions of a Produce request: about 1 ms
T = TypeVar("T")


def is_produce(frame: Buffer) -> bool:
    """Return whether this is a Produce request, which completes even if the client disconnects."""
    return frame[:2] == _PRODUCE_KEY


class KafkaFrontend:
    def __init__(
        self, context: KafkaContext, *, perf: Callable[[], float] = time.perf_counter
    ) -> None:
        self._context = context
        self._contexts: dict[str, KafkaContext] = {}  # by account
        self._logins = context.logins
        self._quotas = ClientQuotas(context.dynamic.stored)
        self._perf = perf
        self._codecs: dict[int, Codec] = {}  # imported when first used
        self._turns = Turns(perf)
        # Allows one thread at a time: each delays the loop by up to sys.getswitchinterval().
        self._aside = asyncio.Lock()

    def drain(self) -> None:
        """Reply to all waiting fetches now, and do not let later fetches wait."""
        self._context.parked.drain()

    async def answer(self, connection: KafkaConnection, frame: Buffer) -> Reply:
        """Return the reply to a frame. Raises HangUp to end the connection, and CancelledError if
        the client disconnects. The buffer of a Produce frame may be reused after the append."""
        started = self._perf()
        name, code, account = UNKNOWN_API, HUNG_UP, ""
        login = self._logins.of(connection)
        try:
            if login.has_tokens_only:
                name = BARE
                taken = await self._logins.take(connection, bytes(frame))
                if taken.code:
                    raise HangUp(taken.code.message)  # the reply has no field for errors
                code = OK
                return (taken.token,)
            header = parse_request_header(frame)
            api = APIS[header.api_key]
            if is_unknown_api_versions(header):
                name, code = api.name, ErrorCode.UNSUPPORTED_VERSION.name
                return (_head(header, api, 0), encoded_unsupported())
            if api.key != PRODUCE and len(frame) > REQUEST_BYTES_MAX:
                # Only requests with records may be longer.
                raise HangUp(
                    f"a request of {len(frame)} bytes exceeds the limit of {REQUEST_BYTES_MAX}"
                )
            name = api.name
            if header.api_key in BEFORE_LOGIN:
                caller = _NOT_LOGGED_IN
            elif login.caller is None:
                raise HangUp("the client is not logged in")
            else:
                self._logins.check(login)
                caller = login.caller
            account = caller.account
            context = self._contexts.get(account)
            if context is None:
                if len(self._contexts) >= ACCOUNTS_MAX:
                    self._contexts.clear()
                context = self._contexts[account] = self._context.of(account)
            call = KafkaCall(context, header, api, connection, caller, self._turns)
            code, buffers = await self._answer(call, login, frame)
            if account:
                self._logins.check_again(login)
        except (Malformed, UnsupportedVersion) as error:
            raise HangUp(str(error)) from None
        except HangUp:
            raise
        except PenstockError as error:
            # No field of the reply can report it.
            log.warning("Kafka request rejected", extra=_about(name, connection, error))
            raise HangUp(str(error)) from error
        except Exception as error:
            code = FAILED
            log.error("Kafka request failed", exc_info=error, extra=_about(name, connection, error))
            raise HangUp("the server failed to handle the request") from error
        else:
            return buffers
        finally:
            seconds = self._perf() - started
            self._context.meter.request(name, PROTOCOL, code, seconds)
            if self._context.usage is not None:
                self._context.usage.requested(account, name, code, seconds)

    async def _answer(self, call: KafkaCall, login: Login, frame: Buffer) -> tuple[str, Reply]:
        codec = self._codecs.get(call.api.key)
        if codec is None:
            codec = self._codecs[call.api.key] = call.api.codec()
        is_produce = call.api.key == PRODUCE
        body_at, version = call.header.body_at, call.version
        request: Message
        try:
            if is_produce:
                try:
                    request = decode_produce_request(frame, body_at, version, DECODED_AT_ONCE_MAX)
                except TooManyEntries:
                    request = await self._run_aside(decode_produce_request, frame, body_at, version)
                    call.slices.expect_long()  # so the reply is encoded in a thread as well
            elif len(frame) <= DECODED_ASIDE_BYTES:
                request = codec.decode_request(frame, body_at, version)
            else:
                request = await self._run_aside(codec.decode_request, frame, body_at, version)
        except TooManyEntries as error:
            return ErrorCode.INVALID_REQUEST.name, _rejected(call, codec, error)
        quotas = self._quotas
        if quotas.is_any and call.api.key in _RECORD_APIS:
            request = self._bounded(call, request)
        action, trail = ACTIONS[call.api.key], call.context.audit
        if trail is not None and call.api.key in AUDITED:
            response = await run_audited(trail, call, action, request)
        else:
            response = await action(call, request)
        buffers = None if response is None else await self._encode(call, codec, response)
        pause_ms, payer = 0, login.payer if call.caller.account else None
        if payer is not None or quotas.is_any:
            has_records = buffers is not None and call.api.key in _RECORD_APIS
            size_bytes = len(frame) if is_produce else 0
            if has_records:
                size_bytes = sum(map(len, buffers or ()))
            if payer is not None:
                charged, now_ms = f"kafka:{call.api.name}", self._context.clock.mono_ms()
                requests = requests_in(request, len(frame))
                pause_ms = self._context.throttler.charge(
                    payer, call.caller, charged, size_bytes, now_ms=now_ms, requests=requests
                )
            if quotas.is_any and (is_produce or has_records):
                pause_ms = max(pause_ms, self._charge_client(call, size_bytes))
        if pause_ms:
            call.connection.hold_back(pause_ms / 1_000)
            if getattr(response, "throttle_time_ms", pause_ms) < pause_ms:
                paused = msgspec.structs.replace(response, throttle_time_ms=pause_ms)
                buffers = await self._encode(call, codec, paused)
        code = getattr(response, "error_code", 0)  # of the whole reply, not of its parts
        return OK if code == 0 else ErrorCode(code).name, buffers

    async def _encode(self, call: KafkaCall, codec: Codec, response: Any) -> Sequence[Piece]:
        if call.is_long:
            return await self._run_aside(_encoded, call, codec, response)
        return _encoded(call, codec, response)

    async def _run_aside(self, function: Callable[..., T], *arguments: object) -> T:
        async with self._aside:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, function, *arguments)

    def _charge_client(self, call: KafkaCall, size_bytes: int) -> int:
        """Charge bytes to the quota of a user and client id. Return the required pause in ms."""
        key = PRODUCED if call.api.key == PRODUCE else FETCHED
        now_ms = self._context.clock.mono_ms()
        pause_ms = self._quotas.charge(*_client(call), key, size_bytes, now_ms=now_ms)
        if pause_ms:
            self._context.throttler.count_rejected(call.account, key)
        return pause_ms

    def _bounded(self, call: KafkaCall, request: Any) -> Any:
        """Return the fetch request with a byte limit of at most the client's quota."""
        now_ms = self._context.clock.mono_ms()
        most = self._quotas.fetch_bytes_max(*_client(call), now_ms=now_ms)
        field = "bytes_max" if call.api.key == FETCH else "max_bytes"
        if most is None or getattr(request, field) <= most:
            return request
        return msgspec.structs.replace(request, **{field: most})


def _client(call: KafkaCall) -> tuple[str, str, str]:
    user = user_shown(call.caller)
    account, client_id = call.caller.account, call.client_id
    return account, user[:CLIENT_NAME_CHARS_MAX], client_id[:CLIENT_NAME_CHARS_MAX]


def _rejected(call: KafkaCall, codec: Codec, error: TooManyEntries) -> Sequence[Piece]:
    """Return a reply with the error. Raises HangUp if the reply has no field for errors."""
    response = rejection(call.api, call.version, str(error))
    if response is not None:
        return _encoded(call, codec, response)
    about = _about(call.api.name, call.connection, error)
    log.warning(
        "request rejected: too many entries",
        extra={**about, "count": error.count, "bound": error.bound},
    )
    raise HangUp(str(error))


def _encoded(call: KafkaCall, codec: Codec, response: Any) -> Sequence[Piece]:
    header, api, version = call.header, call.api, call.version
    if api.key == FETCH:
        body, _ = encode_fetch_reply(response, version)
        return (_head(header, api, version), *body)
    if api.key == SHARE_FETCH:
        return (_head(header, api, version), *encode_share_fetch_reply(response, version))
    return (_head(header, api, version), codec.encode_response(response, version))


def _head(header: RequestHeader, api: Api, version: int) -> bytes:
    return response_header(header.correlation_id, api.response_header_version(version))


def _about(name: str, connection: KafkaConnection, error: Exception) -> dict[str, str]:
    return {"api": name, "peer": connection.peer, "reason": str(error)}
