"""Group coordinators on a real broker, with a port in between that can hold back and fail."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from tests.unit.broker.stage import HandClock, Stage, on_stage

from penstock.broker.coordination.group_coordinator import GroupConfigs
from penstock.broker.coordination.groups import TOPIC_NAME, GroupHost
from penstock.broker.coordination.host import SEGMENT_BYTES, CoordinatorSetup
from penstock.broker.coordination.remote_calls import RemoteCoordinators
from penstock.cursor.coordinator_calls import Commit, FetchOffsets, Heartbeat, Join, Sync
from penstock.cursor.groups.classic.classic_state import JoinReply, JoinRequest, SyncRequest
from penstock.cursor.groups.offsets import CommitReply, CommitRequest, PartitionCommit
from penstock.cursor.groups.settings import GroupSettings
from penstock.model.calls import AppendBatches, BrokerCall, BrokerPort, Ends, R
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.wire.internal.calls import Caller
from penstock.wire.kafka.faults import ErrorCode

SETTINGS = GroupSettings(initial_delay_ms=0)
TOPIC_ID = "ab" * 16


class Between:
    """The broker as coordinators use it. Appends wait for ``gate``, and raise ``failure`` when
    there is one."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_waiting = asyncio.Event()
        self.failure: Exception | None = None
        self.appended: list[bytes] = []
        self.reads = 0

    async def call(self, call: BrokerCall[R]) -> R:
        if isinstance(call, AppendBatches):
            self.is_waiting.set()
            await self.gate.wait()
            self.is_waiting.clear()
            if self.failure is not None:
                raise self.failure
            self.appended.extend(bytes(batch) for batch in call.batches)
        elif isinstance(call, Ends):
            self.reads += 1
        return await self._broker.call(call)


class Leading:
    """Who leads the partitions of groups, as one node of a cluster has heard."""

    def __init__(self, node: int | None = None) -> None:
        self.node = node
        self._waiting: set[asyncio.Event] = set()

    def now(self, node: int | None) -> None:
        self.node = node
        for changed in self._waiting:
            changed.set()

    async def wait_changed(self, timeout_s: float) -> None:
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(changed)

    def seen_by(self, own_node: int, callers: Mapping[int, Caller]) -> RemoteCoordinators:
        return RemoteCoordinators(
            own_node=own_node,
            leader=lambda _topic, _key: self.node,
            caller=callers.__getitem__,
            wait_changed=self.wait_changed,
        )


class Hosting:
    def __init__(self, stage: Stage, host: GroupHost, between: Between) -> None:
        self.stage = stage
        self.host = host
        self.between = between
        self.clock = stage.clock

    @property
    def topic(self) -> Topic:
        topic = self.stage.catalog.find(ACCOUNT_DEFAULT, REGION_DEFAULT, TOPIC_NAME)
        assert topic is not None
        return topic

    async def compact(self) -> int:
        """Compact all partitions; returns the bytes freed."""
        partitions = [
            await self.stage.broker._partition(self.topic, index)
            for index in range(self.topic.partition_count)
        ]
        return sum([await partition.compact() for partition in partitions])

    # ── What clients do ──────────────────────────────────────────────────────────────────────

    async def commit(
        self, group_id: str, offset: int, *, partition: int = 0, topic_id: str = TOPIC_ID
    ) -> ErrorCode:
        """As a consumer does that belongs to no group of members."""
        commit = PartitionCommit(topic_id, partition, offset)
        reply: CommitReply = await self.host.call(Commit(group_id, CommitRequest((commit,))))
        return reply.code or reply.partitions[0][2]

    async def committed(
        self, group_id: str, *, partition: int = 0, topic_id: str = TOPIC_ID
    ) -> int | ErrorCode:
        """The offset, or the code of a coordinator that does not answer."""
        reply = await self.host.call(
            FetchOffsets(
                group_id,
                [(topic_id, partition)],
                requires_stable=False,
                member_id=None,
                member_epoch=-1,
            )
        )
        return reply.code or reply.partitions[0].offset

    async def join(
        self, group_id: str, member_id: str = "", *, name: str = "m", rebalance_ms: int = 60_000
    ) -> JoinReply:
        return await self.host.call(
            Join(
                group_id,
                JoinRequest(
                    member_id=member_id,
                    fresh_member_id=f"{name}-{secrets.token_hex(4)}",
                    session_ms=10_000,
                    rebalance_ms=rebalance_ms,
                    protocol_type="consumer",
                    protocols=(("range", b"meta"),),
                    confirms_id=False,
                ),
            )
        )

    async def stable(self, group_id: str) -> tuple[str, int]:
        """A group of one that has its share: member id and generation."""
        joined = await self.join(group_id)
        assert joined.code is ErrorCode.NONE
        share = ((joined.member_id, b"share"),)
        synced = await self.host.call(
            Sync(group_id, SyncRequest(joined.member_id, joined.generation, assignments=share))
        )
        assert (synced.code, synced.assignment) == (ErrorCode.NONE, b"share")
        return joined.member_id, joined.generation

    async def heartbeat(self, group_id: str, member_id: str, generation: int) -> ErrorCode:
        reply = await self.host.call(
            Heartbeat(group_id, member_id=member_id, generation=generation, instance_id=None)
        )
        return reply.code


@asynccontextmanager
async def hosting(
    folder: Path,
    clock: HandClock | None = None,
    *,
    host_clock: Clock | None = None,
    settings: GroupSettings = SETTINGS,
    segment_bytes: int = SEGMENT_BYTES,
    is_crash: bool = False,
    others: RemoteCoordinators | None = None,
    configs: GroupConfigs | None = None,
) -> AsyncIterator[Hosting]:
    async with on_stage(folder, clock, is_crash=is_crash) as stage:
        between = Between(stage.broker)
        setup = CoordinatorSetup(
            broker=cast(BrokerPort, between),
            catalog=stage.catalog,
            clock=host_clock or stage.clock,
            entropy=secrets.token_bytes,
            account=ACCOUNT_DEFAULT,
            region=REGION_DEFAULT,
            segment_bytes=segment_bytes,
            remote=others,
        )
        host = GroupHost(setup, settings=settings, expire_interval_ms=3_600_000, configs=configs)
        await host.start()
        try:
            yield Hosting(stage, host, between)
        finally:
            between.gate.set()
            await host.stop()
