"""DescribeAcls: nobody checks what a Kafka client may do, and this says so, instead of an empty
list that would look like a checked one."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_acls import DescribeAclsRequest, DescribeAclsResponse

KEY = 29


async def run(
    _context: KafkaContext, _call: KafkaCall, _asked: DescribeAclsRequest
) -> DescribeAclsResponse:
    code = ErrorCode.SECURITY_DISABLED
    return DescribeAclsResponse(error_code=code, error_message=code.message)


ACTION = KafkaAction(KEY, run)
