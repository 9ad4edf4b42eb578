"""``/api/v1/cluster``: how the nodes and partitions of a cluster are, and what an operator may ask
of them. All of it is for operators (``routes.py``), every change is noted in the audit trail.

What is asked for is written down and carried out by whoever manages the cluster: an answer says
that it was accepted, and reading again says how far it has come. Only ``rebalance``,
``unclean-elect`` and, as a rule, ``upgrade`` are done when they are answered.
"""

from typing import Annotated

import msgspec

from penstock.frontend.admin.cluster_port import ClusterPort, PartitionState
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.model.errors import InvalidRequest, NotFound, TopicNotFound
from penstock.model.topic import Topic
from penstock.model.units import counted
from penstock.net.exchange import HttpReply

PARTITIONS_MAX = 1_000  # in one answer; the rest by ``after``
NODE_MAX = 2**31 - 1
LEVEL_ASKED_MAX = 1_000_000


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class UpgradeAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Annotated[int, msgspec.Meta(ge=1, le=LEVEL_ASKED_MAX)] | None = None  # None: the latest
    dry_run: bool = False


async def state(context: Context, call: Call) -> HttpReply:
    call.only(())
    shown = msgspec.structs.asdict(await _cluster(context).state())
    return json_reply(200, {**shown, "reasons": context.health.reasons})


async def partitions(context: Context, call: Call) -> HttpReply:
    call.only(("topic", "account", "region", "node", "state", "limit", "after"))
    cluster = _cluster(context)
    limit = call.number("limit", default=PARTITIONS_MAX, least=1, most=PARTITIONS_MAX)
    topic = call.text("topic")
    found, is_more = await cluster.partitions(
        topic_id=_topic_id(context, topic, call.text("account"), call.text("region"))
        if topic
        else None,
        node=_number(call, "node"),
        state=_state(call.text("state")),
        after=_after(call.text("after")),
        limit=limit,
    )
    last = found[-1] if is_more else None
    return json_reply(
        200,
        {
            "partitions": found,
            "next": None if last is None else f"{last.topic_id}/{last.partition}",
        },
    )


async def safety(context: Context, call: Call) -> HttpReply:
    call.only(("node",))
    return json_reply(200, await _cluster(context).safety(_number(call, "node")))


async def drain(context: Context, call: Call) -> HttpReply:
    call.only(())
    return json_reply(200, await _cluster(context).drain(_node(call)))


async def undrain(context: Context, call: Call) -> HttpReply:
    call.only(())
    return json_reply(200, await _cluster(context).undrain(_node(call)))


async def decommission(context: Context, call: Call) -> HttpReply:
    call.only(())
    return json_reply(200, await _cluster(context).decommission(_node(call)))


async def rebalance(context: Context, call: Call) -> HttpReply:
    call.only(())
    return json_reply(200, {"leaders_changed": await _cluster(context).rebalance()})


async def place(context: Context, call: Call) -> HttpReply:
    call.only(())
    cluster = _cluster(context)
    asked = call.json(Place)
    topic_id = _partition(context, asked)
    await cluster.place(topic_id, asked.partition, asked.replicas)
    return json_reply(
        200, {"topic": asked.topic, "partition": asked.partition, "moving_to": asked.replicas}
    )


async def unclean_elect(context: Context, call: Call) -> HttpReply:
    call.only(())
    cluster = _cluster(context)
    asked = call.json(UncleanElection)
    if not asked.accept_data_loss:
        raise InvalidRequest(
            f"Whatever node {asked.node} does not have of this partition is lost for good:"
            " accept_data_loss has to be true."
        )
    topic_id = _partition(context, asked)
    await cluster.elect_uncleanly(topic_id, asked.partition, asked.node)
    return json_reply(
        200, {"topic": asked.topic, "partition": asked.partition, "leader": asked.node}
    )


async def upgrade(context: Context, call: Call) -> HttpReply:
    call.only(())
    asked = call.json(UpgradeAsked)
    told = await _cluster(context).upgrade(asked.to, is_dry_run=asked.dry_run)
    return json_reply(200, told)


def _cluster(context: Context) -> ClusterPort:
    if context.cluster is None:
        raise NotFound("This node is by itself: it belongs to no cluster.")
    return context.cluster


def _partition(context: Context, asked: Place | UncleanElection) -> str:
    """Return the id of the topic. Raises NotFound if the topic has no such partition."""
    topic = _topic(context, asked.topic, asked.account, asked.region)
    if not 0 <= asked.partition < topic.partition_count:
        raise NotFound(
            f"topic {topic.name} has {counted(topic.partition_count, 'partition')} (0 to"
            f" {topic.partition_count - 1}); there is no partition {asked.partition}"
        )
    return topic.source_id or topic.topic_id


def _topic(context: Context, name: str, account: str, region: str) -> Topic:
    topic = context.everything.find(
        account or context.info.account, region or context.info.region, name
    )
    if topic is None:
        raise TopicNotFound(name)
    return topic


def _topic_id(context: Context, name: str, account: str, region: str) -> str:
    """A share is another way to read the partitions of its topic."""
    topic = _topic(context, name, account, region)
    return topic.source_id or topic.topic_id


def _node(call: Call) -> int:
    """``/api/v1/cluster/nodes/{number}/…``"""
    text = call.path[4]
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:11]) <= NODE_MAX):
        raise InvalidRequest(f"A node is named by its number, from 1 to {NODE_MAX}.")
    return int(text)


def _number(call: Call, name: str) -> int | None:
    if name not in call.query:
        return None
    return call.number(name, default=0, least=1, most=NODE_MAX)


def _state(text: str) -> PartitionState | None:
    try:
        return PartitionState(text) if text else None
    except ValueError:
        known = ", ".join(PartitionState)
        raise InvalidRequest(f"state is one of {known}.") from None


def _after(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    topic_id, _, index = text.rpartition("/")
    if not (topic_id and index.isascii() and index.isdigit() and len(index) <= 10):
        raise InvalidRequest("after is the next of the answer before.")
    return topic_id, int(index)
