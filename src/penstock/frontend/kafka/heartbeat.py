"""Heartbeat: a member of a classic group is alive; the answer tells it to join again."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.heartbeat import HeartbeatRequest, HeartbeatResponse

KEY = 12


async def run(context: KafkaContext, call: KafkaCall, asked: HeartbeatRequest) -> HeartbeatResponse:
    if not on_group(context, call, Operation.READ, asked.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    reply = await context.groups.heartbeat(
        asked.group_id,
        member_id=asked.member_id,
        generation=asked.generation_id,
        instance_id=asked.group_instance_id,
    )
    return HeartbeatResponse(error_code=reply.code)


ACTION = KafkaAction(KEY, run)
