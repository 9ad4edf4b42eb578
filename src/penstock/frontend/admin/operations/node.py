"""Probes of service managers and load balancers, and ``/api/v1/info``, ``/api/v1/config`` and
``/api/v1/callees``.

Probes reply from memory, so that a full disk or a slow store cannot make a living process look
dead. 404 from ``/readyz`` means that the node is draining: HAProxy lets open connections finish
then, while 503 would close them."""

import msgspec

from penstock.frontend.admin.ports.health import State
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.net.http.exchange import HttpReply


async def healthz(_context: Context, _call: Call) -> HttpReply:
    return json_reply(200, {"status": "alive"})


async def readyz(context: Context, _call: Call) -> HttpReply:
    health = context.health
    if health.state is State.DRAINING:
        status, state = 404, "draining"
    elif health.is_ready:
        status, state = 200, "ready"
    else:
        status, state = 503, "starting" if health.state is State.STARTING else "not_ready"
    return json_reply(status, {"status": state, "reasons": health.reasons})


async def startupz(context: Context, _call: Call) -> HttpReply:
    is_started = context.health.state is not State.STARTING
    state = "started" if is_started else "starting"
    percent = context.health.percent_started
    return json_reply(200 if is_started else 503, {"status": state, "percent": percent})


async def info(context: Context, _call: Call) -> HttpReply:
    now_ms = context.clock.wall_ms()
    return json_reply(
        200,
        {
            **msgspec.structs.asdict(context.info),
            "uptime_ms": max(0, now_ms - context.info.started_at_ms),
            "now_ms": now_ms,
            "queue_count": len(context.catalog.all_topics()),
            "state": context.health.state,
            "is_ready": context.health.is_ready,
            "reasons": context.health.reasons,
        },
    )


async def config(context: Context, _call: Call) -> HttpReply:
    return json_reply(200, {"settings": context.config})


async def callees(context: Context, _call: Call) -> HttpReply:
    states = () if context.callees is None else context.callees.states()
    return json_reply(200, {"callees": states})
