"""SaslAuthenticate: a token of the mechanism that SaslHandshake has named, and the server's next
one. A log-in that is refused ends the connection, once its client has been told."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.generated.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)

KEY = 36


async def run(
    context: KafkaContext, call: KafkaCall, asked: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    reply = await context.logins.take(call.connection, asked.auth_bytes)
    if reply.code:
        call.connection.close_when_answered()
    return SaslAuthenticateResponse(
        error_code=reply.code,
        error_message=reply.message,
        auth_bytes=reply.token,
        session_lifetime_ms=reply.lifetime_ms,
    )


ACTION = KafkaAction(KEY, run)
