"""``/api/v1/cluster``: state of the nodes and partitions of a cluster, and requests of operators.

A request is stored, and carried out by the manager of the cluster: the reply means that it was
accepted, and GET shows the progress. Only ``rebalance``, ``unclean-elect`` and usually ``upgrade``
are complete when the reply comes."""

from typing import Annotated

import msgspec

from penstock.frontend.admin.ports.cluster_port import ClusterPort, PartitionState
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context, find_topic
from penstock.model.errors import InvalidRequest, NotFound
from penstock.model.units import counted
from penstock.net.http.exchange import HttpReply

PARTITIONS_MAX = 1_000  # in one reply; the rest by ``after``
NODE_MAX = 2**31 - 1
LEVEL_MAX = 1_000_000


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partition: int
    replicas: tuple[int, ...]  # the first of them leads
    account: str = ""  # empty: the node's own
    region: str = ""


class UncleanElection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partition: int
    node: int
    accept_data_loss: bool = False
    account: str = ""
    region: str = ""


class UpgradeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Annotated[int, msgspec.Meta(ge=1, le=LEVEL_MAX)] | None = None  # None: the latest
    dry_run: bool = False


async def state(context: Context, _call: Call) -> HttpReply:
    shown = msgspec.structs.asdict(await _cluster(context).state())
    return json_reply(200, {**shown, "reasons": context.health.reasons})


async def partitions(context: Context, call: Call) -> HttpReply:
    cluster = _cluster(context)
    limit = call.number("limit", default=PARTITIONS_MAX, least=1, most=PARTITIONS_MAX)
    name, topic_id = call.text("topic"), None
    if name:
        account, region = call.text("account"), call.text("region")
        topic = find_topic(context, context.everything, name, account, region)
        topic_id = topic.source_id or topic.topic_id  # a share has the partitions of its source
    found, is_more = await cluster.partitions(
        topic_id=topic_id,
        node=_number(call, "node"),
        state=_state(call.text("state")),
        after=_after(call.text("after")),
        limit=limit,
    )
    after = f"{found[-1].topic_id}/{found[-1].partition}" if is_more else None
    return json_reply(200, {"partitions": found, "next": after})


async def safety(context: Context, call: Call) -> HttpReply:
    return json_reply(200, await _cluster(context).safety(_number(call, "node")))


async def drain(context: Context, call: Call) -> HttpReply:
    return json_reply(200, await _cluster(context).drain(_node(call)))


async def undrain(context: Context, call: Call) -> HttpReply:
    return json_reply(200, await _cluster(context).undrain(_node(call)))


async def decommission(context: Context, call: Call) -> HttpReply:
    return json_reply(200, await _cluster(context).decommission(_node(call)))


async def rebalance(context: Context, _call: Call) -> HttpReply:
    return json_reply(200, {"leaders_changed": await _cluster(context).rebalance()})


async def place(context: Context, call: Call) -> HttpReply:
    cluster = _cluster(context)
    request = call.json(Placement)
    await cluster.place(_topic_id(context, request), request.partition, request.replicas)
    return json_reply(
        200, {"topic": request.topic, "partition": request.partition, "moving_to": request.replicas}
    )


async def unclean_elect(context: Context, call: Call) -> HttpReply:
    cluster = _cluster(context)
    request = call.json(UncleanElection)
    if not request.accept_data_loss:
        raise InvalidRequest(
            f"Records of this partition that node {request.node} does not have will be lost for"
            " good: set accept_data_loss to true to confirm."
        )
    await cluster.elect_uncleanly(_topic_id(context, request), request.partition, request.node)
    return json_reply(
        200, {"topic": request.topic, "partition": request.partition, "leader": request.node}
    )


async def upgrade(context: Context, call: Call) -> HttpReply:
    request = call.json(UpgradeRequest)
    return json_reply(200, await _cluster(context).upgrade(request.to, is_dry_run=request.dry_run))


def _cluster(context: Context) -> ClusterPort:
    if context.cluster is None:
        raise NotFound("This node is not part of a cluster.")
    return context.cluster


def _topic_id(context: Context, request: Placement | UncleanElection) -> str:
    """Return the id of the topic. Raises NotFound if the topic has no such partition."""
    everything = context.everything
    topic = find_topic(context, everything, request.topic, request.account, request.region)
    if not 0 <= request.partition < topic.partition_count:
        raise NotFound(
            f"topic {topic.name} has {counted(topic.partition_count, 'partition')} (0 to"
            f" {topic.partition_count - 1}); there is no partition {request.partition}"
        )
    return topic.source_id or topic.topic_id


def _node(call: Call) -> int:
    text = call.path[4]
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:11]) <= NODE_MAX):
        raise InvalidRequest(f"The node must be a number from 1 to {NODE_MAX}.")
    return int(text)


def _number(call: Call, name: str) -> int | None:
    if name not in call.query:
        return None
    return call.number(name, default=0, least=1, most=NODE_MAX)


def _state(text: str) -> PartitionState | None:
    try:
        return PartitionState(text) if text else None
    except ValueError:
        raise InvalidRequest(f"state must be one of {', '.join(PartitionState)}.") from None


def _after(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    topic_id, _, index = text.rpartition("/")
    if not (topic_id and index.isascii() and index.isdigit() and len(index) <= 10):
        raise InvalidRequest("after must be the value of next in an earlier reply.")
    return topic_id, int(index)
