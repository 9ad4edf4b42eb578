"""GetQueueUrl: the URL of a queue known by name."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import url_of
from penstock.model.errors import TopicNotFound
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import GetQueueUrlReply, GetQueueUrlRequest


async def run(context: Context, call: Call, asked: GetQueueUrlRequest) -> GetQueueUrlReply:
    name = asked.queue_name
    if not name:
        raise missing("QueueName")
    account = asked.queue_owner_aws_account_id or call.account
    topic = context.catalog.find(account, call.region, name)
    if topic is None:
        raise TopicNotFound(name)
    return GetQueueUrlReply(queue_url=url_of(context, call, topic))


ACTION = Action("GetQueueUrl", run)
