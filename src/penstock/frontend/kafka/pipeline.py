"""Start reading here. One Kafka frame in, the buffers of one answer out.

    header → which API → who asks → decode → action → encode → throttle → meter

Kafka has no way to say "no" to a whole request: errors stand in fields of each API's own answer,
and those are the actions' to fill. What cannot be answered like that ends the connection: a frame
that is not what it claims to be, an API or version nobody serves, a failure we did not foresee
(logged here once, with its traceback). The one exception is ApiVersions in a version from the
future: it is answered in version 0, so that a newer client can choose again.

An action works in the names of its caller's account, and asks itself what the caller may do with
each thing that is named (``permissions.py``); who the caller is was settled by its log-in
(``logins.py``). Who asks too much is answered all the same, told how long to pause, and held to it:
the next request of its connection begins only then.

The listener writes the length in front; a fetch's batches pass through as the buffers they are.

No request keeps the loop busy for long: arrays are bounded by the decoder, actions work in slices
(``frontend/slices.py``), and long messages are decoded and encoded in another thread, one at a
time. What has more entries than one request may have is answered with INVALID_REQUEST, or ends the
connection where the reply has no field for that."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.frontend.kafka import api_versions, sasl_authenticate, sasl_handshake
from penstock.frontend.kafka.actions import ACTIONS
from penstock.frontend.kafka.audited import AUDITED, run_noted
from penstock.frontend.kafka.client_quotas import FETCHED, PRODUCED, ClientQuotas
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.logins import Login, Logins, user_shown
from penstock.frontend.kafka.oversized import rejection, requests_in
from penstock.frontend.slices import Turns
from penstock.model.errors import PenstockError
from penstock.model.file_slice import Piece
from penstock.model.identity import Caller, Tenant
from penstock.model.limits import CLIENT_NAME_CHARS_MAX, REQUEST_BYTES_MAX
from penstock.net.kafka import Buffer, HangUp, KafkaConnection, Reply
from penstock.wire.kafka.apis import (
    API_VERSIONS,
    APIS,
    FETCH,
    PRODUCE,
    SHARE_FETCH,
    Api,
    Codec,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import encode_fetch_reply
from penstock.wire.kafka.frame import (
    RequestHeader,
    is_unknown_api_versions,
    parse_request_header,
    response_header,
)
from penstock.wire.kafka.malformed import Malformed, TooManyEntries, UnsupportedVersion
from penstock.wire.kafka.primitives import Message
from penstock.wire.kafka.produce import decode_produce_request
from penstock.wire.kafka.share_fetch import encode_share_fetch_reply

log = logging.getLogger("penstock.frontend.kafka")

PROTOCOL: Final = "kafka"
OK: Final = "OK"
HUNG_UP: Final = "HangUp"
FAILED: Final = ErrorCode.UNKNOWN_SERVER_ERROR.name
UNKNOWN_API: Final = "unknown"
BARE: Final = "SaslToken"  # a frame that is no request, after the oldest handshake
ACCOUNTS_MAX: Final = 10_000  # remembered; each is about a kilobyte
BEFORE_LOGIN: Final = frozenset((API_VERSIONS, sasl_handshake.KEY, sasl_authenticate.KEY))
_STRANGER: Final = Caller("", "")  # has no rights and is not believed
_CARRYING: Final = frozenset((FETCH, SHARE_FETCH))  # answers that are mostly records
_PRODUCE_KEY: Final = PRODUCE.to_bytes(2, "big")
# A longer request may take 10 ms and more to decode. A Produce request is mostly records: there it
# is the number of partitions that takes long.
DECODED_ASIDE_BYTES: Final = 16_384
DECODED_AT_ONCE_MAX: Final = 1_000  # partitions of a Produce request: about 1 ms
T = TypeVar("T")


def is_produce(frame: Buffer) -> bool:
    """What a producer has sent is appended even if it does not wait to be told."""
    return frame[:2] == _PRODUCE_KEY


class KafkaFrontend:
    def __init__(
        self, context: KafkaContext, *, perf: Callable[[], float] = time.perf_counter
    ) -> None:
        """``perf`` is a monotonic clock in seconds."""
        self._context = context
        self._contexts: dict[str, KafkaContext] = {}  # by account
        self._logins = context.logins = Logins(context, seed=context.login_seed)
        self._quotas = ClientQuotas(context.dynamic.stored)
        self._perf = perf
        self._codecs: dict[int, Codec] = {}  # imported when first used
        self._turns = Turns(perf)
        # One at a time: each thread at work delays the loop by up to sys.getswitchinterval().
        self._aside = asyncio.Lock()

    def drain(self) -> None:
        """Answer the fetches that wait, and let no other begin to."""
        self._context.parked.drain()

    async def answer(self, connection: KafkaConnection, frame: Buffer) -> Reply:
        """Raises HangUp and nothing else, except for cancellation: the client has gone. A frame
        that is a memoryview is a producer's, and not read any more once it is written."""
        started = self._perf()
        name, code, account = UNKNOWN_API, HUNG_UP, ""
        login = self._logins.of(connection)
        try:
            if login.has_tokens_only:
                name = BARE
                token = await self._take_token(connection, frame)
                code = OK
                return token
            header = parse_request_header(frame)
            api = APIS[header.api_key]
            if is_unknown_api_versions(header):
                name, code = api.name, ErrorCode.UNSUPPORTED_VERSION.name
                return _framed(header, api, 0, api_versions.encoded_unsupported())
            action = _action_of(header, frame)
            name = api.name
            caller = self._caller(login, header.api_key)
            account = caller.account
            call = KafkaCall(header, api, connection, caller, self._turns)
            code, buffers = await self._answer(call, login, action, frame)
            if account:
                self._logins.check_again(login)
        except (Malformed, UnsupportedVersion) as error:
            raise HangUp(str(error)) from None
        except HangUp:
            raise
        except PenstockError as error:
            # No field of the answer could carry it.
            log.warning("request refused", extra=_about(name, connection, error))
            raise HangUp(str(error)) from error
        except Exception as error:
            code = FAILED
            log.error("request failed", exc_info=error, extra=_about(name, connection, error))
            raise HangUp("the server failed") from error
        else:
            return buffers
        finally:
            seconds = self._perf() - started
            self._context.meter.request(name, PROTOCOL, code, seconds)
            if self._context.usage is not None:
                self._context.usage.answered(account, name, code, seconds)

    async def _answer(
        self, call: KafkaCall, login: Login, action: KafkaAction, frame: Buffer
    ) -> tuple[str, Reply]:
        codec = self._codec_of(call.api)
        context = self._context_of(call.caller.account)
        is_produce = call.api.key == PRODUCE
        received_bytes = len(frame) if is_produce else 0
        body_at, version = call.header.body_at, call.version
        asked: Message
        try:
            if is_produce:
                try:
                    asked = decode_produce_request(frame, body_at, version, DECODED_AT_ONCE_MAX)
                except TooManyEntries:
                    asked = await self._run_aside(decode_produce_request, frame, body_at, version)
                    call.slices.expect_long()  # so the reply is encoded aside as well
            elif len(frame) <= DECODED_ASIDE_BYTES:
                asked = codec.decode_request(frame, body_at, version)
            else:
                asked = await self._run_aside(codec.decode_request, frame, body_at, version)
        except TooManyEntries as error:
            return ErrorCode.INVALID_REQUEST.name, _rejected(call, codec, error)
        quotas = self._quotas
        if quotas.is_any and call.api.key in _CARRYING:
            asked = self._bounded(call, asked)
        if context.audit is not None and call.api.key in AUDITED:
            response = await run_noted(context.audit, context, call, action, asked)
        else:
            response = await action.run(context, call, asked)
        buffers = None if response is None else await self._encode(call, codec, response)
        pause_ms = 0
        if login.payer is not None and call.caller.account:
            requests = requests_in(asked, len(frame))
            pause_ms = self._charge(call, login.payer, received_bytes, buffers, requests)
        if quotas.is_any:
            pause_ms = max(pause_ms, self._charge_client(call, received_bytes, buffers))
        if pause_ms:
            call.connection.hold_back(pause_ms / 1_000)
            if getattr(response, "throttle_time_ms", pause_ms) < pause_ms:
                told = msgspec.structs.replace(response, throttle_time_ms=pause_ms)
                buffers = await self._encode(call, codec, told)
        return OK if response is None else _code_of(response), buffers

    def _context_of(self, account: str) -> KafkaContext:
        context = self._contexts.get(account)
        if context is None:
            if len(self._contexts) >= ACCOUNTS_MAX:
                self._contexts.clear()
            context = self._contexts[account] = self._context.of(account)
        return context

    async def _encode(self, call: KafkaCall, codec: Codec, response: Any) -> Sequence[Piece]:
        if call.is_long:
            return await self._run_aside(_encoded, call, codec, response)
        return _encoded(call, codec, response)

    async def _run_aside(self, function: Callable[..., T], *arguments: object) -> T:
        """In another thread: for encoding and decoding that takes long."""
        async with self._aside:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, function, *arguments)

    # ── Who asks ─────────────────────────────────────────────────────────────────────────────

    def _caller(self, login: Login, api_key: int) -> Caller:
        """Raises HangUp for a stranger, and for one whose log-in has ended."""
        if api_key in BEFORE_LOGIN:
            return _STRANGER
        if login.caller is None:
            raise HangUp("not logged in")
        self._logins.check(login)
        return login.caller

    async def _take_token(self, connection: KafkaConnection, frame: Buffer) -> Reply:
        reply = await self._logins.take(connection, bytes(frame))
        if reply.code:
            raise HangUp(reply.code.message)  # this form has no other way to say so
        return (reply.token,)

    # ── How much ─────────────────────────────────────────────────────────────────────────────

    def _charge(
        self,
        call: KafkaCall,
        payer: Tenant,
        received_bytes: int,
        buffers: Reply,
        requests: int,
    ) -> int:
        """For how many milliseconds the client must pause. Bytes are those of records."""
        context = self._context
        size_bytes = received_bytes
        if buffers is not None and call.api.key in _CARRYING:
            size_bytes += sum(map(len, buffers))
        return context.throttler.charge(
            payer,
            call.caller,
            f"kafka:{call.api.name}",
            size_bytes,
            now_ms=context.clock.mono_ms(),
            requests=requests,
        )

    def _charge_client(self, call: KafkaCall, received_bytes: int, buffers: Reply) -> int:
        """The same for the quotas of users and client ids."""
        if call.api.key == PRODUCE:
            key, size_bytes = PRODUCED, received_bytes
        elif call.api.key in _CARRYING and buffers is not None:
            key, size_bytes = FETCHED, sum(map(len, buffers))
        else:
            return 0
        now_ms = self._context.clock.mono_ms()
        pause_ms = self._quotas.charge(*_client(call), key, size_bytes, now_ms=now_ms)
        if pause_ms:
            self._context.throttler.count_refused(call.account, key)
        return pause_ms

    def _bounded(self, call: KafkaCall, asked: Any) -> Any:
        """A fetch with no more bytes than its quota allows in some seconds."""
        now_ms = self._context.clock.mono_ms()
        most = self._quotas.fetch_bytes_max(*_client(call), now_ms=now_ms)
        field = "bytes_max" if call.api.key == FETCH else "max_bytes"
        if most is None or getattr(asked, field) <= most:
            return asked
        return msgspec.structs.replace(asked, **{field: most})

    def _codec_of(self, api: Api) -> Codec:
        codec = self._codecs.get(api.key)
        if codec is None:
            codec = self._codecs[api.key] = api.codec()
        return codec


def _action_of(header: RequestHeader, frame: Buffer) -> KafkaAction:
    action = ACTIONS.get(header.api_key)
    if action is None:
        raise HangUp(f"API key {header.api_key} is not served")
    # Only records may be long; a long list of names is somebody trying what we bear.
    if header.api_key != PRODUCE and len(frame) > REQUEST_BYTES_MAX:
        raise HangUp(f"a request of {len(frame)} bytes, {REQUEST_BYTES_MAX} are allowed")
    return action


def _client(call: KafkaCall) -> tuple[str, str, str]:
    """Account, user and client id, as quotas know them."""
    user = user_shown(call.caller)
    account, client_id = call.caller.account, call.client_id
    return account, user[:CLIENT_NAME_CHARS_MAX], client_id[:CLIENT_NAME_CHARS_MAX]


def _rejected(call: KafkaCall, codec: Codec, error: TooManyEntries) -> Sequence[Piece]:
    """Raises HangUp where the reply has no field for the error."""
    response = rejection(call.api, call.version, str(error))
    if response is not None:
        return _encoded(call, codec, response)
    about = _about(call.api.name, call.connection, error)
    log.warning("too many entries", extra={**about, "count": error.count, "bound": error.bound})
    raise HangUp(str(error))


def _encoded(call: KafkaCall, codec: Codec, response: Any) -> Sequence[Piece]:
    header, api, version = call.header, call.api, call.version
    if api.key == FETCH:
        body, _ = encode_fetch_reply(response, version)
        return (_head(header, api, version), *body)
    if api.key == SHARE_FETCH:
        return (_head(header, api, version), *encode_share_fetch_reply(response, version))
    return _framed(header, api, version, codec.encode_response(response, version))


def _head(header: RequestHeader, api: Api, version: int) -> bytes:
    return response_header(header.correlation_id, api.response_header_version(version))


def _framed(header: RequestHeader, api: Api, version: int, body: bytes) -> Sequence[Piece]:
    return (_head(header, api, version), body)


def _code_of(response: Any) -> str:
    """The error of the answer as a whole. Those of its parts are not summed up in one."""
    code = getattr(response, "error_code", 0)
    return OK if code == 0 else ErrorCode(code).name


def _about(name: str, connection: KafkaConnection, error: Exception) -> dict[str, str]:
    return {"api": name, "peer": connection.peer, "why": str(error)}


assert API_VERSIONS in ACTIONS, "a client that cannot ask for the versions asks for nothing"
