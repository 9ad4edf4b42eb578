"""DescribeUserScramCredentials: there are no users with passwords, neither in the list of all nor
by name."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

KEY = 50


async def run(
    _context: KafkaContext, _call: KafkaCall, asked: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    code = ErrorCode.RESOURCE_NOT_FOUND
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[
            DescribeUserScramCredentialsResult(user.name, code, "There is no such user.")
            for user in asked.users or ()
        ],
    )


ACTION = KafkaAction(KEY, run)
