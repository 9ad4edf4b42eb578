"""``/api/v1/backups``: a copy of everything, for operators, in pieces.

    POST   /api/v1/backups                     make a cut; returns its id and contents
    GET    /api/v1/backups/{id}/partitions     logs with start and end, in pages
    GET    /api/v1/backups/{id}/definitions    topics, identities, encrypted keys, in pages
    GET    /api/v1/backups/{id}/records        whole batches of one log from an offset, as bytes
    DELETE /api/v1/backups/{id}                end a backup, complete or not

The node writes nothing. Data of a backup is retained while requests for it come, and for a while
after. Secrets stay encrypted as in the store; the master key is never part of a backup."""

from penstock.frontend.admin.ports.backup_port import BackupPort
from penstock.frontend.admin.reply import HEADERS, json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.model.errors import InvalidRequest, NotFound
from penstock.net.http.exchange import HttpReply

PAGE_MAX = 10_000  # partitions in one reply
OFFSET_MAX = 2**63 - 1
BASE_HEADER = "x-penstock-base-offset"
NEXT_HEADER = "x-penstock-next-offset"
START_HEADER = "x-penstock-start-offset"


async def begin(context: Context, _call: Call) -> HttpReply:
    return json_reply(201, await _port(context).begin())


async def partitions(context: Context, call: Call) -> HttpReply:
    after = call.number("after", default=0, least=0, most=OFFSET_MAX)
    limit = call.number("limit", default=PAGE_MAX, least=1, most=PAGE_MAX)
    found = await _port(context).partitions(call.path[3], after=after, limit=limit)
    return json_reply(200, {"partitions": found, "next": after + len(found) if found else None})


async def definitions(context: Context, call: Call) -> HttpReply:
    after = call.number("after", default=0, least=0, most=OFFSET_MAX)
    found = await _port(context).definitions(call.path[3], after=after)
    return json_reply(200, {"definitions": found, "next": after + len(found) if found else None})


async def records(context: Context, call: Call) -> HttpReply:
    topic_id = call.text("topic_id")
    if not topic_id or "partition" not in call.query or "offset" not in call.query:
        raise InvalidRequest("The parameters topic_id, partition and offset are required.")
    piece = await _port(context).read(
        call.path[3],
        topic_id,
        call.number("partition", default=0, least=0, most=2**31 - 1),
        call.number("offset", default=0, least=0, most=OFFSET_MAX),
    )
    offsets = (
        (BASE_HEADER, str(piece.base_offset)),
        (NEXT_HEADER, str(piece.next_offset)),
        (START_HEADER, str(piece.start_offset)),
    )
    return HttpReply(200, piece.data, "application/octet-stream", (*HEADERS, *offsets))


async def end(context: Context, call: Call) -> HttpReply:
    await _port(context).end(call.path[3])
    return json_reply(200, {"id": call.path[3]})


def _port(context: Context) -> BackupPort:
    if context.backup is None:
        raise NotFound("This node has no logs; send the request to a broker.")
    return context.backup
