"""ChangeMessageVisibility: extend a lease, or release the message with zero."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.receipts import claim_in, fault_of_claim, lease_ms_in
from penstock.wire.aws.shapes import ChangeMessageVisibilityRequest


async def run(context: Context, call: Call, asked: ChangeMessageVisibilityRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    lease_ms = lease_ms_in(asked.visibility_timeout)
    claim = claim_in(asked.receipt_handle, topic)
    [error] = await context.backend.extend(topic, claim.partition, ((claim, lease_ms),))
    if error is not None:
        raise fault_of_claim(error, asked.receipt_handle or "", seconds=asked.visibility_timeout)


ACTION = Action("ChangeMessageVisibility", run)
