"""Group configs move from rows of the coordinator to the metadata store with feature level 3."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.coordination.group_stage import Hosting, Leading, hosting

from penstock.broker.coordination.group_coordinator import GroupConfigs
from penstock.broker.coordination.host import PARTITION_COUNT
from penstock.cursor.coordinator_calls import ChangeConfigs, ReadConfigs
from penstock.cursor.groups.settings import SHARE_LOCK, SHARE_RESET
from penstock.cursor.tenants import NO_QUOTAS
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.resource_configs import GROUP, Resource, ResourceConfigs
from penstock.model.errors import DiskFull, Overloaded
from penstock.model.levels import GROUP_CONFIGS_STORED
from penstock.model.names import ACCOUNT_DEFAULT
from penstock.model.topic import partition_of_group
from penstock.wire.kafka.faults import ErrorCode

BELOW = GROUP_CONFIGS_STORED - 1
PARTITION = partition_of_group("g", PARTITION_COUNT)
ORDERS = Resource(ACCOUNT_DEFAULT, GROUP, "g")


class Level:
    def __init__(self, level: int) -> None:
        self.level = level

    def __call__(self) -> int:
        return self.level


class Node:
    def __init__(self, hosting: Hosting, stored: ResourceConfigs, level: Level) -> None:
        self.hosting = hosting
        self.host = hosting.host
        self.stored = stored
        self._level = level

    def raise_level(self) -> None:
        self._level.level = GROUP_CONFIGS_STORED
        self.host.level_changed()

    async def set(self, group: str = "g", **configs: str | None) -> ErrorCode:
        names = {"lock": SHARE_LOCK, "reset": SHARE_RESET}
        changes = {names[name]: text for name, text in configs.items()}
        return (await self.host.call(ChangeConfigs(group, changes))).code

    async def shown(self, group: str = "g") -> dict[str, str]:
        code, configs = await self.host.call(ReadConfigs(group))
        assert code is ErrorCode.NONE
        return dict(configs)

    async def moved(self) -> None:
        async with asyncio.timeout(10):
            for coordinator in self.host._coordinators:
                await coordinator.configs_moved()
            await asyncio.sleep(0)

    def rows(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for coordinator in self.host._coordinators:
            found.update(coordinator._groups.configs_rows())
        return found


@asynccontextmanager
async def node(folder: Path, level: int, **more: Any) -> AsyncIterator[Node]:
    store = await SqliteStore.open(folder / "configs.db")
    stored = ResourceConfigs(store)
    await stored.start()
    at = Level(level)
    try:
        configs = GroupConfigs(stored, usage=NO_QUOTAS, level=at)
        async with hosting(folder, configs=configs, **more) as found:
            yield Node(found, stored, at)
    finally:
        await stored.stop()
        await store.close()


async def test_below_the_level_configs_are_rows(tmp_path: Path) -> None:
    async with node(tmp_path, BELOW) as one:
        assert await one.set(lock="2000") is ErrorCode.NONE
        assert (await one.shown(), one.rows()) == (
            {SHARE_LOCK: "2000"},
            {"g": {SHARE_LOCK: "2000"}},
        )
        assert not one.stored.names(ACCOUNT_DEFAULT, GROUP)
        assert one.host.share_settings("g").lock_ms == 2_000


async def test_at_the_level_configs_are_in_the_store(tmp_path: Path) -> None:
    async with node(tmp_path, GROUP_CONFIGS_STORED) as one:
        assert await one.set(lock="2000") is ErrorCode.NONE
        assert one.stored.get(ORDERS) == await one.shown() == {SHARE_LOCK: "2000"}
        assert one.rows() == {}
        assert one.host.share_settings("g").lock_ms == 2_000


async def test_a_start_at_the_level_moves_rows_before_anybody_is_served(tmp_path: Path) -> None:
    async with node(tmp_path, BELOW) as old:
        for number in range(20):
            assert await old.set(f"g{number}", lock=f"{2_000 + number}") is ErrorCode.NONE
        assert await old.set("000000000000/111111111111/x", reset="earliest") is ErrorCode.NONE
    async with node(tmp_path, GROUP_CONFIGS_STORED) as new:
        assert new.rows() == {}
        for number in range(20):
            assert await new.shown(f"g{number}") == {SHARE_LOCK: f"{2_000 + number}"}
        assert len(new.stored.names(ACCOUNT_DEFAULT, GROUP)) == 21
    async with node(tmp_path, BELOW) as again:
        assert again.rows() == {}, "tombstones are in the log"


async def test_a_raised_level_moves_rows(tmp_path: Path) -> None:
    async with node(tmp_path, BELOW) as one:
        await one.set(lock="2000")
        one.raise_level()
        await one.moved()
        assert one.stored.get(ORDERS) == await one.shown() == {SHARE_LOCK: "2000"}
        assert one.rows() == {}


async def test_a_change_during_the_move_wins(tmp_path: Path) -> None:
    async with node(tmp_path, BELOW) as one:
        await one.set(lock="2000", reset="earliest")
        one.hosting.between.gate.clear()
        one.raise_level()
        await one.hosting.between.is_waiting.wait()
        assert await one.set(lock="3000") is ErrorCode.NONE
        one.hosting.between.gate.set()
        await one.moved()
        assert await one.shown() == {SHARE_LOCK: "3000", SHARE_RESET: "earliest"}


async def test_who_cannot_append_moves_nothing(tmp_path: Path) -> None:
    """A coordinator that leads no more may have rows that were changed since."""
    async with node(tmp_path, BELOW) as one:
        await one.set(lock="2000")
        one.hosting.between.failure = DiskFull("not the leader")
        one.raise_level()
        await one.moved()
        assert one.stored.get(ORDERS) == {}
        one.hosting.between.failure = None
        one.hosting.clock.advance(20_000)
        async with asyncio.timeout(10):
            while not one.stored.get(ORDERS):
                one.host.tick()
                await asyncio.sleep(0.01)


async def test_rows_stay_until_the_store_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.coordination.group_coordinator.MOVE_RETRY_SECONDS", 0.01)
    async with node(tmp_path, BELOW) as one:
        await one.set(lock="2000")
        asked = asyncio.Event()

        async def away(*_: object, **__: object) -> int:
            asked.set()
            raise Overloaded("the store is away")

        with monkeypatch.context() as patched:
            patched.setattr(SqliteStore, "put", away)
            one.raise_level()
            await asked.wait()
            assert one.rows() == {"g": {SHARE_LOCK: "2000"}}
        await one.moved()
        assert one.stored.get(ORDERS) == {SHARE_LOCK: "2000"}
        assert one.rows() == {}


async def test_a_coordinator_that_takes_over_moves_what_it_finds(tmp_path: Path) -> None:
    async with node(tmp_path, BELOW) as old:
        await old.set(lock="2000")
    others = Leading(2).seen_by(1, {})
    async with node(tmp_path, GROUP_CONFIGS_STORED, others=others) as new:
        assert new.stored.get(ORDERS) == {}
        assert new.host.share_settings("g").lock_ms == 30_000
        new.host.led(PARTITION, True)
        async with asyncio.timeout(10):
            while not new.stored.get(ORDERS):
                await asyncio.sleep(0.01)
        await new.moved()
        assert new.rows() == {}


async def test_a_node_that_does_not_coordinate_knows_and_changes_configs(tmp_path: Path) -> None:
    others = Leading(2).seen_by(1, {})
    async with node(tmp_path, GROUP_CONFIGS_STORED, others=others) as one:
        assert await one.set(lock="2000") is ErrorCode.NONE
        assert await one.shown() == {SHARE_LOCK: "2000"}
        assert one.host.share_settings("g").lock_ms == 2_000


async def test_below_the_level_a_node_that_does_not_coordinate_knows_defaults(
    tmp_path: Path,
) -> None:
    others = Leading(2).seen_by(1, {})
    async with node(tmp_path, BELOW, others=others) as one:
        assert one.host.share_settings("g").lock_ms == 30_000
        assert await one.set(lock="2000") is ErrorCode.NOT_COORDINATOR


async def test_a_store_that_is_away_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, GROUP_CONFIGS_STORED) as one:

        async def away(*_: object, **__: object) -> int:
            raise Overloaded("the store is away")

        monkeypatch.setattr(SqliteStore, "put", away)
        assert await one.set(lock="2000") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await one.set("x" * 2_000, lock="2000") is ErrorCode.INVALID_GROUP_ID


async def test_a_log_that_is_read_again_during_the_move_is_moved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, BELOW) as one:
        await one.set(lock="2000")
        asked, may_go = asyncio.Event(), asyncio.Event()
        put = SqliteStore.put

        async def slow(self: SqliteStore, key: str, value: bytes, **given: Any) -> int:
            asked.set()
            await may_go.wait()
            return await put(self, key, value, **given)

        monkeypatch.setattr(SqliteStore, "put", slow)
        one.raise_level()
        await asked.wait()
        coordinator = one.host._coordinators[PARTITION]
        coordinator.lose("an append failed")
        one.hosting.clock.advance(20_000)
        async with asyncio.timeout(10):
            while not coordinator.ready():
                await asyncio.sleep(0.01)
            assert one.rows() == {"g": {SHARE_LOCK: "2000"}}
            may_go.set()
            while one.rows():
                await asyncio.sleep(0.01)
        assert one.stored.get(ORDERS) == {SHARE_LOCK: "2000"}
