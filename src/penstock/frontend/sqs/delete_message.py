"""DeleteMessage: the consumer is finished; answered once that is durable."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.receipts import claim_in, fault_of_claim
from penstock.wire.aws.shapes import DeleteMessageRequest


async def run(context: Context, call: Call, asked: DeleteMessageRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    claim = claim_in(asked.receipt_handle, topic)
    [error] = await context.backend.ack(topic, claim.partition, (claim,))
    if error is not None:
        raise fault_of_claim(error, asked.receipt_handle or "")
    context.meter.deleted(1)


ACTION = Action("DeleteMessage", run)
