"""Start reading here. One Kafka frame in, the buffers of one answer out.

    header → which API → decode → action → encode → meter

Kafka has no way to say "no" to a whole request: errors stand in fields of each API's own answer,
and those are the actions' to fill. What cannot be answered like that ends the connection: a frame
that is not what it claims to be, an API or version nobody serves, a failure we did not foresee
(logged here once, with its traceback). The one exception is ApiVersions in a version from the
future: it is answered in version 0, so that a newer client can choose again.

The listener writes the length in front; a fetch's batches pass through as the buffers they are."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.frontend.kafka import api_versions
from penstock.frontend.kafka.actions import ACTIONS
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.model.errors import PenstockError
from penstock.model.limits import REQUEST_BYTES_MAX
from penstock.net.kafka import Buffer, HangUp, KafkaConnection
from penstock.wire.kafka.apis import API_VERSIONS, APIS, FETCH, PRODUCE, Api, Codec
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import encode_fetch_reply
from penstock.wire.kafka.frame import (
    LENGTH_BYTES,
    RequestHeader,
    is_unknown_api_versions,
    parse_request_header,
    response_head,
)
from penstock.wire.kafka.malformed import Malformed, UnsupportedVersion

log = logging.getLogger("penstock.frontend.kafka")

PROTOCOL: Final = "kafka"
OK: Final = "OK"
HUNG_UP: Final = "HangUp"
FAILED: Final = ErrorCode.UNKNOWN_SERVER_ERROR.name
UNKNOWN_API: Final = "unknown"
_PRODUCE_KEY: Final = PRODUCE.to_bytes(2, "big")


def is_produce(frame: bytes) -> bool:
    """What a producer has sent is appended even if it does not wait to be told."""
    return frame[:2] == _PRODUCE_KEY


class KafkaFrontend:
    def __init__(
        self, context: KafkaContext, *, perf: Callable[[], float] = time.perf_counter
    ) -> None:
        """``perf`` is a monotonic clock in seconds."""
        self._context = context
        self._perf = perf
        self._codecs: dict[int, Codec] = {}  # imported when first used

    def drain(self) -> None:
        """Answer the fetches that wait, and let no other begin to."""
        self._context.parked.drain()

    async def answer(self, connection: KafkaConnection, frame: bytes) -> Sequence[Buffer] | None:
        """Raises HangUp and nothing else, except for cancellation: the client has gone."""
        started = self._perf()
        name, code = UNKNOWN_API, HUNG_UP
        try:
            header = parse_request_header(frame)
            api = APIS[header.api_key]
            if is_unknown_api_versions(header):
                name, code = api.name, ErrorCode.UNSUPPORTED_VERSION.name
                return _framed(header, api, 0, api_versions.encoded_unsupported())
            action = _action_of(header, frame)
            name = api.name
            call = KafkaCall(header, api, connection)
            code, buffers = await self._answer(call, action, frame)
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
            self._context.meter.request(name, PROTOCOL, code, self._perf() - started)

    async def _answer(
        self, call: KafkaCall, action: KafkaAction, frame: bytes
    ) -> tuple[str, Sequence[Buffer] | None]:
        codec = self._codec_of(call.api)
        version = call.version
        asked = codec.decode_request(frame, call.header.body_at, version)
        response = await action.run(self._context, call, asked)
        if response is None:
            return OK, None
        code = _code_of(response)
        if call.api.key == FETCH:
            body, _ = encode_fetch_reply(response, version)
            return code, (_head(call.header, call.api, version), *body)
        body_bytes = codec.encode_response(response, version)
        return code, _framed(call.header, call.api, version, body_bytes)

    def _codec_of(self, api: Api) -> Codec:
        codec = self._codecs.get(api.key)
        if codec is None:
            codec = self._codecs[api.key] = api.codec()
        return codec


def _action_of(header: RequestHeader, frame: bytes) -> KafkaAction:
    action = ACTIONS.get(header.api_key)
    if action is None:
        raise HangUp(f"API key {header.api_key} is not served")
    # Only records may be long; a long list of names is somebody trying what we bear.
    if header.api_key != PRODUCE and len(frame) > REQUEST_BYTES_MAX:
        raise HangUp(f"a request of {len(frame)} bytes, {REQUEST_BYTES_MAX} are allowed")
    return action


def _head(header: RequestHeader, api: Api, version: int) -> bytes:
    return response_head(header.correlation_id, api.response_header_version(version), 0)[
        LENGTH_BYTES:
    ]


def _framed(header: RequestHeader, api: Api, version: int, body: bytes) -> Sequence[Buffer]:
    return (_head(header, api, version), body)


def _code_of(response: Any) -> str:
    """The error of the answer as a whole. Those of its parts are not summed up in one."""
    code = getattr(response, "error_code", 0)
    return OK if code == 0 else ErrorCode(code).name


def _about(name: str, connection: KafkaConnection, error: Exception) -> dict[str, str]:
    return {"api": name, "peer": connection.peer, "why": str(error)}


assert API_VERSIONS in ACTIONS, "a client that cannot ask for the versions asks for nothing"
