"""DeleteAcls: refused, for there are none; see create_acls.py."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

KEY = 31


async def run(
    _context: KafkaContext, _call: KafkaCall, asked: DeleteAclsRequest
) -> DeleteAclsResponse:
    code = ErrorCode.SECURITY_DISABLED
    return DeleteAclsResponse(
        filter_results=[DeleteAclsFilterResult(code, code.message) for _ in asked.filters]
    )


ACTION = KafkaAction(KEY, run)
