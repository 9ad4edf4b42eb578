"""``/api/v1/backups``: a copy of everything, for operators, piece by piece.

    POST   /api/v1/backups                     a cut is made; what it is of, and its id
    GET    /api/v1/backups/{id}/partitions     which logs, from where to where, a page at a time
    GET    /api/v1/backups/{id}/definitions    topics, identities, sealed keys, a page at a time
    GET    /api/v1/backups/{id}/records        whole batches of one log from an offset on, as bytes
    DELETE /api/v1/backups/{id}                the copy is made, or given up

Nothing is written on this side. As long as somebody asks, what is to be copied is kept; one that
nobody asks about for a while is forgotten. Secrets are sealed as they are in the store, and the
master key that opens them is never told.
"""

from penstock.frontend.admin.backup_port import BackupPort
from penstock.frontend.admin.reply import HEADERS, json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.model.errors import InvalidRequest, NotFound
from penstock.net.exchange import HttpReply

PAGE_MAX = 10_000  # partitions in one answer
OFFSET_MAX = 2**63 - 1
BASE_HEADER = "x-penstock-base-offset"
NEXT_HEADER = "x-penstock-next-offset"
START_HEADER = "x-penstock-start-offset"


async def begin(context: Context, call: Call) -> HttpReply:
    call.only(())
    return json_reply(201, await _port(context).begin())


async def partitions(context: Context, call: Call) -> HttpReply:
    call.only(("after", "limit"))
    after = call.number("after", default=0, least=0, most=OFFSET_MAX)
    limit = call.number("limit", default=PAGE_MAX, least=1, most=PAGE_MAX)
    found = await _port(context).partitions(call.path[3], after=after, limit=limit)
    return json_reply(200, {"partitions": found, "next": after + len(found) if found else None})


async def definitions(context: Context, call: Call) -> HttpReply:
    call.only(("after",))
    after = call.number("after", default=0, least=0, most=OFFSET_MAX)
    found = await _port(context).definitions(call.path[3], after=after)
    return json_reply(200, {"definitions": found, "next": after + len(found) if found else None})


async def records(context: Context, call: Call) -> HttpReply:
    call.only(("topic_id", "partition", "offset"))
    topic_id = call.text("topic_id")
    if not topic_id or "partition" not in call.query or "offset" not in call.query:
        raise InvalidRequest("topic_id, partition and offset say which records.")
    piece = await _port(context).read(
        call.path[3],
        topic_id,
        call.number("partition", default=0, least=0, most=2**31 - 1),
        call.number("offset", default=0, least=0, most=OFFSET_MAX),
    )
    told = (
        (BASE_HEADER, str(piece.base_offset)),
        (NEXT_HEADER, str(piece.next_offset)),
        (START_HEADER, str(piece.start_offset)),
    )
    return HttpReply(200, piece.data, "application/octet-stream", (*HEADERS, *told))


async def end(context: Context, call: Call) -> HttpReply:
    call.only(())
    await _port(context).end(call.path[3])
    return json_reply(200, {"id": call.path[3]})


def _port(context: Context) -> BackupPort:
    if context.backup is None:
        raise NotFound("This node has no logs: ask a broker for a backup.")
    return context.backup
