"""``/api/v1/info``: what this node is. ``/api/v1/config``: its settings, each with its origin.
``/api/v1/callees``: whom its frontend calls, how many calls are under way, and who is cut off."""

import msgspec

from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.net.exchange import HttpReply


async def info(context: Context, call: Call) -> HttpReply:
    call.only(())
    now_ms = context.clock.wall_ms()
    facts = msgspec.structs.asdict(context.info)
    facts["uptime_ms"] = max(0, now_ms - context.info.started_at_ms)
    facts["now_ms"] = now_ms
    facts["queue_count"] = len(context.catalog.all_topics())
    facts["state"] = context.health.state
    facts["is_ready"] = context.health.is_ready
    facts["reasons"] = context.health.reasons
    return json_reply(200, facts)


async def config(context: Context, call: Call) -> HttpReply:
    call.only(())
    return json_reply(200, {"settings": context.config})


async def callees(context: Context, call: Call) -> HttpReply:
    call.only(())
    states = () if context.callees is None else context.callees.states()
    return json_reply(200, {"callees": states})
