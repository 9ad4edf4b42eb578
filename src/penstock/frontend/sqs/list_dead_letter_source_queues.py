"""ListDeadLetterSourceQueues: whose dead letters come here."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of, url_of
from penstock.frontend.sqs.paging import page
from penstock.frontend.sqs.redrive import sources_of
from penstock.wire.aws.shapes import (
    ListDeadLetterSourceQueuesReply,
    ListDeadLetterSourceQueuesRequest,
)


async def run(
    context: Context, call: Call, asked: ListDeadLetterSourceQueuesRequest
) -> ListDeadLetterSourceQueuesReply:
    sources = sources_of(context.catalog, topic_of(context, call, asked.queue_url))
    shown, next_token = page(sources, next_token=asked.next_token, max_results=asked.max_results)
    urls = [url_of(context, call, topic) for topic in shown]
    # The one list that is answered even when empty: botocore's paginator and its users index it.
    return ListDeadLetterSourceQueuesReply(queue_urls=urls, next_token=next_token)


ACTION = Action("ListDeadLetterSourceQueues", run)
