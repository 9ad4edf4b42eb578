"""``/api/v1/coordinators/{topic}/{partition}``: the log of one coordinator.

GET  …            whether all rows are readable, and the first one that is not
GET  …?offset=N   the same, with the row at this offset
POST …/skip       ``{"offset": N}``: skip the unreadable row at this offset, for good
"""

from typing import Annotated

import msgspec

from penstock.frontend.admin.ports.coordinator_port import CoordinatorPort
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.model.errors import InvalidRequest, NotFound
from penstock.net.http.exchange import HttpReply

OFFSET_MAX = 2**63 - 1
PARTITION_DIGITS_MAX = 9


class SkipRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]


async def show(context: Context, call: Call) -> HttpReply:
    offset = None
    if "offset" in call.query:
        offset = call.number("offset", default=0, least=0, most=OFFSET_MAX)
    return json_reply(200, await _port(context).show(call.path[3], _partition(call), offset))


async def skip(context: Context, call: Call) -> HttpReply:
    offset = call.json(SkipRequest).offset
    return json_reply(200, await _port(context).skip(call.path[3], _partition(call), offset))


def _port(context: Context) -> CoordinatorPort:
    if context.coordinators is None:
        raise NotFound("This node has no coordinators.")
    return context.coordinators


def _partition(call: Call) -> int:
    text = call.path[4]
    if not (text.isascii() and text.isdigit() and len(text) <= PARTITION_DIGITS_MAX):
        raise InvalidRequest("The partition must be a number from 0.")
    return int(text)
