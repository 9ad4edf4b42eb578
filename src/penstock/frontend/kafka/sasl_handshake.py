"""SaslHandshake: which mechanism a client is going to log in with. After version 0 its tokens come
as frames without a header, after version 1 as SaslAuthenticate requests."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

KEY = 17
_REQUESTS_FROM = 1


async def run(
    context: KafkaContext, call: KafkaCall, asked: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    connection, logins = call.connection, context.logins
    code = logins.begin(connection, asked.mechanism, has_tokens_only=call.version < _REQUESTS_FROM)
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        connection.close_when_answered()
    return SaslHandshakeResponse(error_code=code, mechanisms=logins.mechanisms(connection))


ACTION = KafkaAction(KEY, run)
