"""Handles FindCoordinator, and the requests of group members: JoinGroup, SyncGroup, Heartbeat and
LeaveGroup of classic groups, ConsumerGroupHeartbeat (KIP-848) and ShareGroupHeartbeat (KIP-932).
With these two heartbeats, members send their state and get the partitions that the coordinator
assigns."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from penstock.cursor.coordinator_calls import BeatConsumer, BeatShare, Heartbeat, Join, Leave, Sync
from penstock.cursor.groups.assigned import JOIN, LEAVE
from penstock.cursor.groups.assignors import Partitions, to_map
from penstock.cursor.groups.classic.classic_state import JoinReply, JoinRequest, SyncRequest
from penstock.cursor.groups.consumer import ConsumerHeartbeat
from penstock.cursor.groups.share import ShareHeartbeat, ShareReply
from penstock.cursor.patterns.matches import TopicVisibility
from penstock.frontend.kafka import checks
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import ApiError, error_fields, invalid_request
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.ports.cluster import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from penstock.frontend.kafka.shares.share_groups import open_share
from penstock.model.errors import InvalidRequest, PenstockError, client_text
from penstock.model.limits import MIB
from penstock.model.names import scoped_id, uuid_text
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import consumer_group_heartbeat as consumer_wire
from penstock.wire.kafka.generated import find_coordinator as find_wire
from penstock.wire.kafka.generated import heartbeat as heartbeat_wire
from penstock.wire.kafka.generated import join_group as join_wire
from penstock.wire.kafka.generated import leave_group as leave_wire
from penstock.wire.kafka.generated import share_group_heartbeat as share_wire
from penstock.wire.kafka.generated import sync_group as sync_wire

_BATCHED_FROM = 4
_OWN_ID_FROM = 1
_GROUP = 0
_TRANSACTION = 1
_SHARE = 2
_NO_NODE = -1
_CONFIRMS_ID_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIPS_ASSIGNMENT_FROM = 9
_SYNC_NEEDS_PROTOCOL_FROM = 5
_SEVERAL_LEAVE_FROM = 3
# Enough for the names of ten thousand topics with two assignors. Metadata is in memory and in the
# log as long as the member is in the group.
METADATA_BYTES_MAX = MIB
PREFIX_CHARS_MAX = 255  # of the client or instance id at the start of a member id


async def find_coordinator(call: KafkaCall, request: find_wire.Request) -> find_wire.Response:
    if call.version >= _BATCHED_FROM:
        return find_wire.Response(
            coordinators=await call.slices.map(
                lambda key: _coordinator(call, request.key_type, key),
                dict.fromkeys(request.coordinator_keys),
            )
        )
    fields = asdict(_coordinator(call, request.key_type, request.key))
    del fields["key"]
    return find_wire.Response(**fields)


def _coordinator(call: KafkaCall, key_type: int, key: str) -> find_wire.Coordinator:
    context, group_id, internal = call.context, key, GROUPS_TOPIC
    try:
        if key_type == _GROUP:
            checks.check_group(call, Operation.DESCRIBE, key)
        elif key_type == _TRANSACTION:
            checks.check_transactional_id(call, Operation.DESCRIBE, key)
            internal = TRANSACTIONS_TOPIC
        elif key_type == _SHARE:
            checks.check_cluster(call, Operation.CLUSTER_ACTION)
            group_id = key.partition(":")[0]  # without topic id and partition
        else:
            raise invalid_request(f"Unknown key type {key_type}: use 0 (group) to 2 (share).")
        # Keys in the internal topic contain the account.
        scoped = scoped_id(context.account, group_id, own_account=context.config.account)
        found = context.brokers.coordinator(internal, scoped)
        if found is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    except ApiError as error:
        return find_wire.Coordinator(key, _NO_NODE, "", _NO_NODE, **error_fields(error))
    return find_wire.Coordinator(key, found.node_id, found.host, found.port, 0, "")


async def join(call: KafkaCall, request: join_wire.Request) -> join_wire.Response:
    """Add the client to the next generation of a group, and wait until all members have joined. A
    new member gets its id from this node. From version 4 on, a new member without an instance id
    first gets a reply with only this id, and joins again with it."""
    if not on_group(call, Operation.READ, request.group_id):
        reply = JoinReply(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif sum(len(each.metadata) for each in request.protocols) > METADATA_BYTES_MAX:
        reply = JoinReply(ErrorCode.INVALID_REQUEST)
    else:
        prefix = (request.group_instance_id or call.client_id)[:PREFIX_CHARS_MAX]
        join_request = JoinRequest(
            member_id=request.member_id,
            fresh_member_id=f"{prefix}-{uuid_text(call.context.entropy(16))}",
            session_ms=request.session_timeout_ms,
            rebalance_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((each.name, each.metadata) for each in request.protocols),
            instance_id=request.group_instance_id,
            client_id=call.client_id,
            client_host=call.client_host,
            confirms_id=call.version >= _CONFIRMS_ID_FROM,
            can_skip_assignment=call.version >= _SKIPS_ASSIGNMENT_FROM,
        )
        reply = await call.context.groups.call(Join(request.group_id, join_request))
    protocol = reply.protocol
    if call.version < _NULL_PROTOCOL_FROM:
        protocol = protocol or ""
    return join_wire.Response(
        error_code=reply.code,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=protocol,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id or request.member_id,
        members=[join_wire.JoinGroupResponseMember(*member) for member in reply.members],
    )


async def sync(call: KafkaCall, request: sync_wire.Request) -> sync_wire.Response:
    """Return the assignment of a member, once the group's leader has sent all assignments."""
    checks.check_group(call, Operation.READ, request.group_id)
    has_protocol = request.protocol_type is not None and request.protocol_name is not None
    if call.version >= _SYNC_NEEDS_PROTOCOL_FROM and not has_protocol:
        return sync_wire.Response(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    sync_request = SyncRequest(
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )
    reply = await call.context.groups.call(Sync(request.group_id, sync_request))
    return sync_wire.Response(
        error_code=reply.code,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


async def heartbeat(call: KafkaCall, request: heartbeat_wire.Request) -> heartbeat_wire.Response:
    """Keep a member in its group. An error code in the reply may ask the member to join again."""
    checks.check_group(call, Operation.READ, request.group_id)
    reply = await call.context.groups.call(
        Heartbeat(
            request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
        )
    )
    return heartbeat_wire.Response(error_code=reply.code)


async def leave(call: KafkaCall, request: leave_wire.Request) -> leave_wire.Response:
    """Remove members from a group. Before version 3, a request can name only one member."""
    checks.check_group(call, Operation.READ, request.group_id)
    leavers = [(each.member_id, each.group_instance_id) for each in request.members]
    is_one = call.version < _SEVERAL_LEAVE_FROM
    if is_one:
        leavers = [(request.member_id, None)]
    reply = await call.context.groups.call(Leave(request.group_id, leavers))
    if is_one:
        code = reply.code or next((code for _, _, code in reply.members), reply.code)
        return leave_wire.Response(error_code=code)
    return leave_wire.Response(
        error_code=reply.code, members=[leave_wire.MemberResponse(*each) for each in reply.members]
    )


async def check_heartbeat(call: KafkaCall, group_id: str, names: Sequence[str] | None) -> None:
    """Raise ApiError unless the caller may read the group and describe the topics ``names``."""
    if not group_id:
        raise invalid_request("GroupId can't be empty.")
    checks.check_group(call, Operation.READ, group_id)
    async for name in call.slices.each(names or ()):
        checks.check_topic(call, Operation.DESCRIBE, name)


async def consumer_beat(call: KafkaCall, request: consumer_wire.Request) -> consumer_wire.Response:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    try:
        await check_heartbeat(call, request.group_id, names)
    except ApiError as error:
        return consumer_wire.Response(**error_fields(error), member_id=request.member_id or None)
    member_id, visibility = request.member_id, None
    if not member_id and request.member_epoch == JOIN and call.version < _OWN_ID_FROM:
        member_id = uuid_text(call.context.entropy(16))
    heartbeat = ConsumerHeartbeat(
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_ms=request.rebalance_timeout_ms,
        topic_names=None if names is None else tuple(names),
        topic_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else frozenset((each.topic_id.hex(), index) for each in owned for index in each.partitions),
        client_id=call.client_id,
        client_host=call.client_host,
    )
    if not call.caller.is_trusted:
        # A pattern of the member must match only topics that the caller may read.
        visibility = TopicVisibility(
            call.context.identities.epoch, lambda name: on_topic(call, Operation.READ, name)
        )
    reply = await call.context.groups.call(
        BeatConsumer(request.group_id, heartbeat, visibility=visibility)
    )
    assignment = None
    if reply.assignment is not None:
        topic = consumer_wire.ConsumerGroupHeartbeatResponseTopicPartitions
        assignment = consumer_wire.Assignment([topic(*one) for one in _by_topic(reply.assignment)])
    return consumer_wire.Response(
        error_code=reply.code,
        error_message=reply.message,
        member_id=reply.member_id or member_id or None,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_ms,
        assignment=assignment,
    )


async def share_beat(call: KafkaCall, request: share_wire.Request) -> share_wire.Response:
    group_id, names = request.group_id, request.subscribed_topic_names
    is_leaving = request.member_epoch == LEAVE
    try:
        await check_heartbeat(call, group_id, names)
        heartbeat = ShareHeartbeat(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            topic_names=None if names is None else tuple(names),
            client_id=call.client_id,
            client_host=call.client_host,
        )
        reply = await call.context.groups.call(BeatShare(group_id, heartbeat))
        if reply.code:
            raise ApiError(reply.code, reply.message)
        if not is_leaving:
            await _open_shares(call, group_id, reply)
    except ApiError as error:
        return share_wire.Response(**error_fields(error), member_id=request.member_id or None)
    assignment = [share_wire.TopicPartitions(*each) for each in _by_topic(reply.assignment)]
    return share_wire.Response(
        member_id=request.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=0 if is_leaving else reply.settings.heartbeat_ms,
        assignment=share_wire.Assignment(assignment) if reply.is_news else None,
    )


async def _open_shares(call: KafkaCall, group_id: str, reply: ShareReply) -> None:
    """Open the group's share (its lease cursor) of each assigned topic before the member gets its
    assignment. Records that are produced before the member's first fetch are then not missed."""
    is_earliest = reply.settings.is_earliest
    try:
        for topic_id in {topic_id for topic_id, _ in reply.assignment}:
            topic = checks.find_id(call.context, bytes.fromhex(topic_id))
            if topic is not None and call.context.anywhere.find_share(topic, group_id) is None:
                await open_share(call.context, topic, group_id, is_earliest=is_earliest)
    except InvalidRequest as error:
        raise invalid_request(str(error)) from None
    except PenstockError as error:
        # The client retries upon this code, so the share is opened later.
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, client_text(error)) from None


def _by_topic(partitions: Partitions) -> Any:
    return [(bytes.fromhex(topic_id), indexes) for topic_id, indexes in to_map(partitions).items()]
