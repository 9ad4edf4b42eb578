"""ListQueues: the caller's queues in this region, by name."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import url_of
from penstock.frontend.sqs.paging import page
from penstock.wire.aws.shapes import ListQueuesReply, ListQueuesRequest


async def run(context: Context, call: Call, asked: ListQueuesRequest) -> ListQueuesReply:
    topics = context.catalog.topics(call.account, call.region, asked.queue_name_prefix or "")
    shown, next_token = page(topics, next_token=asked.next_token, max_results=asked.max_results)
    urls = [url_of(context, call, topic) for topic in shown]
    return ListQueuesReply(queue_urls=urls or None, next_token=next_token)


ACTION = Action("ListQueues", run)
