"""``/api/v1/queues/{name}/rotate``: seal with a new data key from now on. What was sealed before
stays as it is, and its key is kept for as long as it may be read."""

from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.model.errors import InvalidRequest, TopicNotFound
from penstock.net.exchange import HttpReply


async def rotate(context: Context, call: Call) -> HttpReply:
    """Of queues and streams alike."""
    call.only(("account", "region"))
    account = call.text("account") or context.info.account
    region = call.text("region") or context.info.region
    topic = context.everything.find(account, region, call.path[3])
    if topic is None:
        raise TopicNotFound(call.path[3])
    if context.sealing is None:
        raise InvalidRequest("This node encrypts nothing.")
    await context.sealing.rotate(topic)
    return json_reply(200, {"name": topic.name, "account": account, "region": region})
