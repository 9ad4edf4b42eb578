"""A transaction that is decided and not carried out yet when a backup is made is carried out on
what is restored: all of it, in every partition and in its group."""

from pathlib import Path

from tests.unit.backup.test_restore import laid_out
from tests.unit.backup.vault import backed_up
from tests.unit.broker.coordination.transaction_stage import Client, settled, transacting
from tests.unit.broker.stage import HandClock

from penstock.broker.context.context import CROSSINGS_MS_MAX


async def test_a_decided_transaction_is_whole_after_a_restore(tmp_path: Path) -> None:
    clock = HandClock()
    async with transacting(tmp_path / "old", clock) as rig:
        topic = await rig.stream(partitions=2)
        client = Client(rig)
        await client.init()
        await client.send(topic, "x", partition=0)
        await client.send(topic, "y", partition=1)
        await client.send_offset("g", topic, 7)
        rig.host._hold.hold_crossings("backup", CROSSINGS_MS_MAX)
        assert await client.commit() == 0
        assert not rig.between.markers
        backup, _ = await backed_up(rig.stage, tmp_path / "backups")
        assert not rig.between.markers, "held up to now"
        rig.host._hold.release_crossings("backup")
        await settled(rig)
        assert await rig.read(topic, 0) == ["x"]
    await laid_out(backup, tmp_path / "new")
    async with transacting(tmp_path / "new", clock) as rig:
        await settled(rig)
        assert await rig.read(topic, 0) == ["x"]
        assert await rig.read(topic, 1) == ["y"]
        assert await rig.committed("g", topic, requires_stable=True) == (0, 7)
        client.on(rig)
        assert await client.send(topic, "next") == await client.commit() == 0


async def test_an_open_transaction_is_still_open(tmp_path: Path) -> None:
    clock = HandClock()
    async with transacting(tmp_path / "old", clock) as rig:
        topic = await rig.stream()
        client = Client(rig)
        await client.init()
        await client.send(topic, "before")
        backup, _ = await backed_up(rig.stage, tmp_path / "backups")
        await client.commit()
        await settled(rig)
    await laid_out(backup, tmp_path / "new")
    async with transacting(tmp_path / "new", clock) as rig:
        assert await rig.read(topic) == []
        client.on(rig)
        assert await client.commit() == 0
        await settled(rig)
        assert await rig.read(topic) == ["before"]
