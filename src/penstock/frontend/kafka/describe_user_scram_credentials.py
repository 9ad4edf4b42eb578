"""DescribeUserScramCredentials: which users of the caller's account have a password, for which
mechanisms and with how many iterations; of the password itself nothing."""

from collections import Counter

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.scram_mechanisms import MECHANISMS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

KEY = 50


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    if not on_cluster(context, call, Operation.DESCRIBE):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeUserScramCredentialsResponse(error_code=code, error_message=code.message)
    if asked.users:
        counts = Counter(user.name for user in asked.users)
        results = [
            _named(context, name, count) async for name, count in call.slices.each(counts.items())
        ]
    else:
        results = [
            DescribeUserScramCredentialsResult(user.name, error_message="", credential_infos=infos)
            async for user in call.slices.each(list(context.identities.users(context.account)))
            if (infos := _infos(context, user.name))
        ]
    return DescribeUserScramCredentialsResponse(error_message="", results=results)


def _named(context: KafkaContext, name: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        return DescribeUserScramCredentialsResult(name, code, code.message)
    infos = _infos(context, name)
    if not infos:
        code = ErrorCode.RESOURCE_NOT_FOUND
        return DescribeUserScramCredentialsResult(name, code, "No user of this name has one.")
    return DescribeUserScramCredentialsResult(name, error_message="", credential_infos=infos)


def _infos(context: KafkaContext, user: str) -> list[CredentialInfo]:
    found = []
    for number, mechanism in MECHANISMS.items():
        credential = context.identities.scram(context.account, user, mechanism)
        if credential is not None:
            found.append(CredentialInfo(number, credential.iterations))
    return found


ACTION = KafkaAction(KEY, run)
