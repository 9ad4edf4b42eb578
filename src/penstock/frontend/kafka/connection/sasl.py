"""SaslHandshake and SaslAuthenticate: a client logs in."""

from penstock.frontend.kafka.context import KafkaCall
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import sasl_authenticate as authenticate_wire
from penstock.wire.kafka.generated import sasl_handshake as handshake_wire

_REQUESTS_FROM = 1


async def handshake(call: KafkaCall, request: handshake_wire.Request) -> handshake_wire.Response:
    """Begin a login with a mechanism. After version 0 the client's tokens come as frames without a
    header, after version 1 as SaslAuthenticate requests."""
    connection, logins = call.connection, call.context.logins
    has_tokens_only = call.version < _REQUESTS_FROM
    code = logins.begin(connection, request.mechanism, has_tokens_only=has_tokens_only)
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        connection.close_after_reply()
    mechanisms = logins.mechanisms(connection)
    return handshake_wire.Response(error_code=code, mechanisms=mechanisms)


async def authenticate(
    call: KafkaCall, request: authenticate_wire.Request
) -> authenticate_wire.Response:
    """Process a token of the client. A rejected login ends the connection after the reply."""
    reply = await call.context.logins.take(call.connection, request.auth_bytes)
    if reply.code:
        call.connection.close_after_reply()
    return authenticate_wire.Response(
        error_code=reply.code,
        error_message=reply.message,
        auth_bytes=reply.token,
        session_lifetime_ms=reply.lifetime_ms,
    )
