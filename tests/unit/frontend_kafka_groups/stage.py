"""The group APIs as bytes in and out, over real coordinators on streams in memory."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.frontend_kafka.rig import ACCOUNT, REGION, IdCatalog, Rig

from penstock.broker.coordination.groups import GroupHost
from penstock.broker.coordination.host import CoordinatorSetup
from penstock.cursor.groups.settings import GroupSettings
from penstock.model.topic import Topic
from penstock.wire.kafka.generated.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.wire.kafka.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

JOIN, SYNC, HEARTBEAT, LEAVE = 11, 14, 12, 13
OFFSET_COMMIT, OFFSET_FETCH, OFFSET_DELETE = 8, 9, 47
LIST, DESCRIBE, DELETE = 16, 15, 42
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69

SETTINGS = GroupSettings(initial_delay_ms=0)


class HeardCatalog(IdCatalog):
    """One that tells of changes."""

    def __init__(self) -> None:
        super().__init__()
        self._listeners: list[Callable[[Topic | None, Topic | None], None]] = []

    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None:
        self._listeners.append(listener)

    async def create(self, topic: Topic) -> Topic:
        made = await super().create(topic)
        for listener in self._listeners:
            listener(None, made)
        return made

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        gone = await super().delete(account, region, name, now_ms=now_ms)
        for listener in self._listeners:
            listener(gone, None)
        return gone


class GroupRig(Rig):
    host: GroupHost

    def __init__(self) -> None:
        super().__init__()
        self.catalog = self.context.catalog = HeardCatalog()

    async def join(
        self, group_id: str, *, version: int = 9, member_id: str = "", **fields: Any
    ) -> JoinGroupResponse:
        found = await self.ask(
            JOIN,
            version,
            JoinGroupRequest(
                group_id=group_id,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000 if version >= 1 else -1,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol("range", b"\x00\x00\x00\x00\x00\x00")],
                **fields,
            ),
        )
        assert isinstance(found, JoinGroupResponse)
        return found

    async def joined(self, group_id: str, *, version: int = 9, **fields: Any) -> JoinGroupResponse:
        """Joined for good: with the id that was given."""
        first = await self.join(group_id, version=version, **fields)
        if first.error_code == 0:
            return first
        return await self.join(group_id, version=version, member_id=first.member_id, **fields)

    async def stable(self, group_id: str) -> JoinGroupResponse:
        joined = await self.joined(group_id)
        synced = await self.ask(
            SYNC,
            5,
            SyncGroupRequest(
                group_id,
                joined.generation_id,
                joined.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[SyncGroupRequestAssignment(joined.member_id, b"share")],
            ),
        )
        assert synced.assignment == b"share"
        return joined


@asynccontextmanager
async def groups(settings: GroupSettings = SETTINGS) -> AsyncIterator[GroupRig]:
    rig = GroupRig()
    setup = CoordinatorSetup(
        broker=rig.streams,
        catalog=rig.catalog,
        clock=rig.context.clock,
        entropy=secrets.token_bytes,
        account=ACCOUNT,
        region=REGION,
    )
    host = GroupHost(setup, settings=settings)
    await host.start()
    rig.host = host
    rig.context.groups = host
    try:
        yield rig
    finally:
        await host.stop()
