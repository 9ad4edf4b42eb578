"""CreateAcls: refused. A rule that was taken and never looked at would be a promise broken."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)

KEY = 30


async def run(
    _context: KafkaContext, _call: KafkaCall, asked: CreateAclsRequest
) -> CreateAclsResponse:
    code = ErrorCode.SECURITY_DISABLED
    return CreateAclsResponse(
        results=[AclCreationResult(code, code.message) for _ in asked.creations]
    )


ACTION = KafkaAction(KEY, run)
