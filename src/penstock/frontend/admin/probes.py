"""``/healthz``, ``/readyz`` and ``/startupz``: what service managers and load balancers ask.

They answer from memory and touch nothing, so that a full disk or a slow store cannot make a
living process look dead. 404 from ``/readyz`` means "being drained": HAProxy lets open
connections finish on it, where 503 would cut them.
"""

from penstock.frontend.admin.health import State
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.net.exchange import HttpReply


async def healthz(context: Context, call: Call) -> HttpReply:  # noqa: ARG001
    return json_reply(200, {"status": "alive"})


async def readyz(context: Context, call: Call) -> HttpReply:  # noqa: ARG001
    health = context.health
    reasons = health.reasons
    if health.state is State.DRAINING:
        status, state = 404, "draining"
    elif health.is_ready:
        status, state = 200, "ready"
    else:
        status, state = 503, "starting" if health.state is State.STARTING else "not_ready"
    return json_reply(status, {"status": state, "reasons": reasons})


async def startupz(context: Context, call: Call) -> HttpReply:  # noqa: ARG001
    health = context.health
    is_started = health.state is not State.STARTING
    return json_reply(
        200 if is_started else 503,
        {"status": "started" if is_started else "starting", "percent": health.percent_started},
    )
