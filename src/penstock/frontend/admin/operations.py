"""Handlers for operators: health checks, state of the node, cluster, backups and coordinators.

Health checks reply from memory, so that a full disk or a slow metadata store cannot make a living
process look dead. ``/readyz`` returns 404 while the node is draining, because HAProxy then lets
open connections finish; 503 would close them."""

from typing import Annotated, Any

import msgspec

from penstock.frontend.admin.ports import (
    BackupPort,
    ClusterPort,
    CoordinatorPort,
    PartitionState,
    State,
)
from penstock.frontend.admin.request import HEADERS, Body, Call, json_reply, picked, whole
from penstock.model.errors import InvalidRequest, NotFound
from penstock.model.units import counted
from penstock.net.http.exchange import HttpReply

PARTITIONS_MAX = 1_000  # in one reply; the parameter ``after`` requests the next page
NODE_MAX = 2**31 - 1
LEVEL_MAX = 1_000_000
PAGE_MAX = 10_000  # partitions of a backup in one reply
OFFSET_MAX = 2**63 - 1
BASE_HEADER = "x-penstock-base-offset"
NEXT_HEADER = "x-penstock-next-offset"
START_HEADER = "x-penstock-start-offset"


# ── The node ─────────────────────────────────────────────────────────────────────────────────


def readyz(call: Call) -> Any:
    health = call.context.health
    if health.state is State.DRAINING:
        status, state = 404, "draining"
    elif health.is_ready:
        status, state = 200, "ready"
    else:
        status, state = 503, "starting" if health.state is State.STARTING else "not_ready"
    return json_reply(status, {"status": state, "reasons": health.reasons})


def startupz(call: Call) -> Any:
    health = call.context.health
    is_started = health.state is not State.STARTING
    found = {"status": "started" if is_started else "starting", "percent": health.percent_started}
    return json_reply(200 if is_started else 503, found)


def info(call: Call) -> Any:
    context, now_ms = call.context, call.now_ms
    return {
        **msgspec.structs.asdict(context.info),
        "uptime_ms": max(0, now_ms - context.info.started_at_ms),
        "now_ms": now_ms,
        "queue_count": len(context.catalog.all_topics()),
        "state": context.health.state,
        "is_ready": context.health.is_ready,
        "reasons": context.health.reasons,
    }


def callees(call: Call) -> Any:
    found = call.context.callees
    return {"callees": () if found is None else found.states()}


# ── The cluster ──────────────────────────────────────────────────────────────────────────────
# The reply means that a request was stored. The manager of the cluster carries it out afterwards,
# except ``rebalance``, ``unclean-elect`` and usually ``upgrade``, which are complete then.


class Placement(Body, frozen=True):
    topic: str
    partition: int
    replicas: tuple[int, ...]  # the first of them leads
    account: str = ""  # by default the node's own
    region: str = ""


class UncleanElection(Body, frozen=True):
    topic: str
    partition: int
    node: int
    accept_data_loss: bool = False
    account: str = ""
    region: str = ""


class UpgradeRequest(Body, frozen=True):
    to: Annotated[int, msgspec.Meta(ge=1, le=LEVEL_MAX)] | None = None  # None: the latest
    dry_run: bool = False


async def state(call: Call) -> Any:
    return {**await _cluster(call).state(), "reasons": call.context.health.reasons}


async def partitions(call: Call) -> Any:
    cluster = _cluster(call)
    limit = call.number("limit", default=PARTITIONS_MAX, least=1, most=PARTITIONS_MAX)
    name, topic_id = call.text("topic"), None
    if name:
        topic = call.topic(call.context.everything, name)
        topic_id = topic.source_id or topic.topic_id  # a share has the partitions of its source
    given = call.text("state")
    if given and given not in PartitionState.__members__.values():
        raise InvalidRequest(f"Parameter 'state' must be one of {', '.join(PartitionState)}.")
    state = PartitionState(given) if given else None
    node, after = call.optional("node", least=1, most=NODE_MAX), _after(call.text("after"))
    found, is_more = await cluster.partitions(
        topic_id=topic_id, node=node, state=state, after=after, limit=limit
    )
    next_ = f"{found[-1].topic_id}/{found[-1].partition}" if is_more else None
    return {"partitions": found, "next": next_}


def safety(call: Call) -> Any:
    return _cluster(call).safety(call.optional("node", least=1, most=NODE_MAX))


def change_node(call: Call) -> Any:
    to, number = _cluster(call), whole(call.path[4], digits_max=11)
    if number is None or not 1 <= number <= NODE_MAX:
        raise InvalidRequest(f"The node must be a number from 1 to {NODE_MAX}.")
    changes = {"drain": to.drain, "undrain": to.undrain, "decommission": to.decommission}
    return changes[call.path[5]](number)


async def rebalance(call: Call) -> Any:
    return {"leaders_changed": await _cluster(call).rebalance()}


async def place(call: Call) -> Any:
    cluster, request = _cluster(call), call.json(Placement)
    await cluster.place(_topic_id(call, request), request.partition, request.replicas)
    return {**picked(request, "topic", "partition"), "moving_to": request.replicas}


async def unclean_elect(call: Call) -> Any:
    cluster, request = _cluster(call), call.json(UncleanElection)
    if not request.accept_data_loss:
        text = f"Records of this partition that node {request.node} does not have will be"
        raise InvalidRequest(f"{text} permanently lost: set accept_data_loss to true to confirm.")
    await cluster.elect_uncleanly(_topic_id(call, request), request.partition, request.node)
    return {**picked(request, "topic", "partition"), "leader": request.node}


def upgrade(call: Call) -> Any:
    request = call.json(UpgradeRequest)
    return _cluster(call).upgrade(request.to, is_dry_run=request.dry_run)


def _cluster(call: Call) -> ClusterPort:
    if call.context.cluster is None:
        raise NotFound("This node is not part of a cluster.")
    return call.context.cluster


def _topic_id(call: Call, request: Placement | UncleanElection) -> str:
    everything = call.context.everything
    topic = call.topic(everything, request.topic, request.account, request.region)
    if not 0 <= request.partition < topic.partition_count:
        count = topic.partition_count
        text = f"topic {topic.name} has {counted(count, 'partition')} (0 to {count - 1})"
        raise NotFound(f"{text}; there is no partition {request.partition}")
    return topic.source_id or topic.topic_id


def _after(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    topic_id, _, index = text.rpartition("/")
    number = whole(index, digits_max=10)
    if not topic_id or number is None:
        raise InvalidRequest("Parameter 'after' must be the 'next' value of an earlier reply.")
    return topic_id, number


# ── Backups ──────────────────────────────────────────────────────────────────────────────────
# ``begin`` fixes the end offset of every log; the other requests read the data before it in pages.
# The data is retained while requests for it come. Secrets stay encrypted as in the metadata store.


async def begin_backup(call: Call) -> Any:
    return json_reply(201, await _backup(call).begin())


async def backup_partitions(call: Call) -> Any:
    after = call.number("after", default=0, least=0, most=OFFSET_MAX)
    limit = call.number("limit", default=PAGE_MAX, least=1, most=PAGE_MAX)
    found = await _backup(call).partitions(call.path[3], after=after, limit=limit)
    return {"partitions": found, "next": after + len(found) if found else None}


async def backup_definitions(call: Call) -> Any:
    after = call.number("after", default=0, least=0, most=OFFSET_MAX)
    found = await _backup(call).definitions(call.path[3], after=after)
    return {"definitions": found, "next": after + len(found) if found else None}


async def backup_records(call: Call) -> Any:
    topic_id = call.text("topic_id")
    if not topic_id or "partition" not in call.query or "offset" not in call.query:
        raise InvalidRequest("The parameters topic_id, partition and offset are required.")
    partition = call.number("partition", default=0, least=0, most=2**31 - 1)
    offset = call.number("offset", default=0, least=0, most=OFFSET_MAX)
    piece = await _backup(call).read(call.path[3], topic_id, partition, offset)
    offsets = (piece.base_offset, piece.next_offset, piece.start_offset)
    headers = zip((BASE_HEADER, NEXT_HEADER, START_HEADER), map(str, offsets), strict=True)
    return HttpReply(200, piece.data, "application/octet-stream", (*HEADERS, *headers))


async def end_backup(call: Call) -> Any:
    await _backup(call).end(call.path[3])
    return {"id": call.path[3]}


def _backup(call: Call) -> BackupPort:
    if call.context.backup is None:
        raise NotFound("This node stores no messages; send the request to a broker.")
    return call.context.backup


# ── The log of one coordinator: /api/v1/coordinators/{topic}/{partition} ─────────────────────


class SkipRequest(Body, frozen=True):
    offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]


def show_coordinator(call: Call) -> Any:
    offset = call.optional("offset", least=0, most=OFFSET_MAX)
    return _coordinators(call).show(call.path[3], _partition(call), offset)


def skip_row(call: Call) -> Any:
    offset = call.json(SkipRequest).offset
    return _coordinators(call).skip(call.path[3], _partition(call), offset)


def _coordinators(call: Call) -> CoordinatorPort:
    if call.context.coordinators is None:
        raise NotFound("This node has no coordinators; send the request to a broker.")
    return call.context.coordinators


def _partition(call: Call) -> int:
    number = whole(call.path[4], digits_max=9)
    if number is None:
        raise InvalidRequest("The partition must be a non-negative integer.")
    return number
