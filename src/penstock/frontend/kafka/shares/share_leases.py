"""Acknowledges, extends and releases the leases of share sessions.

The records of a member are released at once when it closes its session, opens another one, or loses
the connection of its session, so that other members need not wait until its leases expire. Leaving
the group does not release records, because the last acknowledgements may arrive after that."""

import asyncio
import logging
from collections.abc import Sequence

from penstock.frontend.kafka.checks import find_id, has_partition
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.sessions.share_sessions import (
    AckBatch,
    AckPlan,
    Place,
    ShareSession,
    are_valid,
)
from penstock.model.calls import Finish, Prolong
from penstock.model.errors import PenstockError
from penstock.model.message import Claim
from penstock.model.topic import Topic
from penstock.net.kafka.listener import KafkaConnection
from penstock.wire.kafka.faults import ErrorCode

log = logging.getLogger("penstock.frontend.kafka")

_WATCHED = "share"  # key in a connection's session: ``_lost`` is called at its end
RELEASED_MS = 0


async def open_session(
    context: KafkaContext,
    connection: KafkaConnection,
    group_id: str,
    member_id: str,
    places: Sequence[Place],
) -> ShareSession | ErrorCode:
    sessions, account = context.share_sessions, context.account
    older = sessions.find(group_id, member_id, account=account)
    if older is not None:
        await close_session(context, older)
        if sessions.find(group_id, member_id, account=account) is not None:
            # Another request has opened a session at the same time.
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session = sessions.open(group_id, member_id, connection, account=account)
    if isinstance(session, ErrorCode):
        return session
    if not session.add(places):
        sessions.close(session)
        return ErrorCode.INVALID_REQUEST
    if _WATCHED not in connection.session:
        connection.session[_WATCHED] = True
        connection.on_lost.append(lambda: _lost(context, connection))
    return session


def _lost(context: KafkaContext, connection: KafkaConnection) -> None:
    """Close the sessions of a connection, and release their records in the background."""
    for session in context.share_sessions.owned_by(connection):
        context.share_sessions.close(session)
        task = asyncio.get_running_loop().create_task(
            release_all(context, session), name="release of a share session"
        )
        context.share_releases.add(task)
        task.add_done_callback(context.share_releases.discard)


async def close_session(context: KafkaContext, session: ShareSession) -> None:
    context.share_sessions.close(session)
    await release_all(context, session)


async def release_all(context: KafkaContext, session: ShareSession) -> None:
    for place, claims in tuple(session.held()):
        await release(context, session, place, claims)


async def release(
    context: KafkaContext, session: ShareSession, place: Place, claims: Sequence[Claim]
) -> None:
    """Release leases. Errors are only logged, because the leases expire anyway."""
    share = share_at(context, session, place)
    if isinstance(share, ErrorCode):
        return
    given = [(claim, RELEASED_MS) for claim in claims]
    try:
        await context.anywhere.call(Prolong(share, place[1], given))
    except PenstockError as error:
        log.info(
            "releasing the leases of a share session failed, they will expire",
            extra={"group": session.group_id, "count": len(claims), "reason": str(error)},
        )
    session.let_go(place, claims)


def share_at(context: KafkaContext, session: ShareSession, place: Place) -> Topic | ErrorCode:
    """Return the group's share (lease cursor) of a partition's topic, or an error code."""
    topic = find_id(context, place[0])
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not has_partition(topic, place[1]):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # The heartbeat that assigned the partition to the member has opened the share.
    share = context.anywhere.find_share(topic, session.group_id)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if share is None else share


async def acknowledge(
    context: KafkaContext,
    session: ShareSession,
    place: Place,
    batches: Sequence[AckBatch],
    *,
    is_renewal: bool,
) -> ErrorCode:
    """Process all acknowledgements of a partition, or none if the member lacks a lease."""
    if not are_valid(batches, is_renewal=is_renewal):
        return ErrorCode.INVALID_REQUEST
    share = share_at(context, session, place)
    if isinstance(share, ErrorCode):
        return share
    plan = session.plan(place, batches)
    if plan is None:
        return ErrorCode.INVALID_RECORD_STATE
    if plan.renewed and not context.groups.share_settings(session.group_id).is_renewable:
        return ErrorCode.INVALID_RECORD_STATE
    try:
        return await _carry_out(context, session, place, share, plan)
    except PenstockError as error:
        return partition_code(error)


async def _carry_out(
    context: KafkaContext, session: ShareSession, place: Place, share: Topic, plan: AckPlan
) -> ErrorCode:
    broker, partition = context.anywhere, place[1]
    results: list[Exception | None] = []
    # Claims are let go after each call, so that the rest is released if the request is cancelled.
    for claims, is_rejected in ((plan.accepted, False), (plan.rejected, True)):
        if claims:
            results += await broker.call(Finish(share, partition, claims, is_rejected=is_rejected))
            session.let_go(place, claims)
    if plan.released:
        given = [(claim, RELEASED_MS) for claim in plan.released]
        results += await broker.call(Prolong(share, partition, given))
        session.let_go(place, plan.released)
    if plan.renewed:
        lock_ms = context.groups.share_settings(session.group_id).lock_ms
        given = [(claim, lock_ms) for claim in plan.renewed]
        renewed = await broker.call(Prolong(share, partition, given))
        ends_at_ms = context.clock.mono_ms() + lock_ms
        pairs = list(zip(plan.renewed, renewed, strict=True))
        session.let_go(place, [claim for claim, error in pairs if error is not None])
        kept = [(claim.offset, claim.lease_seq, 0) for claim, error in pairs if error is None]
        session.hold(place, kept, ends_at_ms)
        results += renewed
    error = next((each for each in results if each is not None), None)
    if isinstance(error, PenstockError):
        return partition_code(error)
    return ErrorCode.NONE if error is None else ErrorCode.UNKNOWN_SERVER_ERROR
