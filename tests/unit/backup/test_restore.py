"""A broker, a backup of it, and a broker on what was restored: the same messages, the same offsets,
whatever happened while it was copied."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.unit.backup.vault import admin_of, backed_up
from tests.unit.broker.partition.test_stream import batch, stream
from tests.unit.broker.stage import HandClock, Stage, bodies, claim, message, on_stage
from tests.unit.broker.storage.test_compaction import (
    SMALL,
    compacted_topic,
    partition_of,
    put,
    read,
)
from tests.unit.metadata.test_subscriptions import make as make_subscription

from penstock.backup import admin as backup_admin
from penstock.backup.manifest import BackupUnusable, read_manifest, verify
from penstock.log.log import LogConfig
from penstock.metadata.security.acl_rules import AclRules
from penstock.metadata.sns_keys import SnsKeyEntry, sns_key_key
from penstock.metadata.subscriptions import (
    SUBSCRIPTIONS_PREFIX,
    decode_subscription,
    encode_subscription,
    subscription_key,
)
from penstock.metadata.topics.resource_configs import GROUP, Resource, ResourceConfigs
from penstock.model.acls import Acl
from penstock.model.calls import Ack, Append, AppendBatches, DeleteRecords, Ends, Fetch, Lease
from penstock.model.errors import NotFound, OffsetOutOfRange, Throttled
from penstock.model.limits import KIB
from penstock.model.names import queue_arn
from penstock.model.ports import LeaseRequest
from penstock.model.subscription import SubscriptionState
from penstock.model.topic import Topic
from penstock.node.configuration import config as node_config
from penstock.node.configuration.exposure import ExposureRefused
from penstock.node.process.folder import FolderUnusable
from penstock.node.restoring import restore

SEGMENTS = LogConfig(segment_bytes_max=16 * KIB)


def config_for(data: Path) -> node_config.Config:
    return node_config.load({"node.data": str(data)}, {}).config


async def laid_out(backup: Path, data: Path, *, is_pushing: bool = False) -> int:
    def work() -> int:
        return restore(
            backup,
            read_manifest(backup),
            config_for(data),
            is_pushing=is_pushing,
            now_ms=1,
            progress=lambda _done, _total: None,
        )

    assert verify(backup) == []
    return await asyncio.to_thread(work)


async def all_bodies(stage: Stage, topic: Topic) -> list[str]:
    found: list[str] = []
    while got := await stage.broker.call(Lease(topic, LeaseRequest(10, 3_600_000))):
        found += bodies(got)
    return found


async def test_what_was_not_acknowledged_comes_back_and_leases_go_on(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path / "old", clock) as stage:
        topic = await stage.topic()
        await stage.topic("never-used", partitions=3)
        await stage.broker.call(Append(topic, 0, [message(str(n)) for n in range(20)]))
        acked = await stage.broker.call(Lease(topic, LeaseRequest(5)))
        await stage.broker.call(Ack(topic, 0, [claim(one) for one in acked]))
        leased = await stage.broker.call(Lease(topic, LeaseRequest(5, 60_000)))
        backup, manifest = await backed_up(stage, tmp_path / "backups")
        await stage.broker.call(Append(topic, 0, [message("too late")]))
    assert len(manifest.partitions) == 4
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new", clock, elapsed_since_ms=clock.wall_ms()) as stage:
        found = stage.catalog.find_id(topic.topic_id)
        assert found == topic
        assert await all_bodies(stage, topic) == [str(n) for n in range(10, 20)]
        assert list(await stage.broker.call(Ack(topic, 0, [claim(leased[0])]))) == [None]
        clock.advance(60_000)
        again = await stage.broker.call(Lease(topic, LeaseRequest(10)))
        assert sorted(bodies(again)) == ["6", "7", "8", "9"]


async def test_configs_of_groups_are_in_a_backup(tmp_path: Path) -> None:
    group = Resource("000000000000", GROUP, "a/b")
    async with on_stage(tmp_path / "old") as stage:
        configs = ResourceConfigs(stage.catalog._store)
        await configs.start()
        await configs.change(group, {"share.record.lock.duration.ms": "2000"})
        await configs.stop()
        backup, _ = await backed_up(stage, tmp_path / "backups")
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        configs = ResourceConfigs(stage.catalog._store)
        await configs.start()
        assert configs.get(group) == {"share.record.lock.duration.ms": "2000"}
        await configs.stop()


async def test_access_rules_are_in_a_backup(tmp_path: Path) -> None:
    rule = Acl(2, "orders", 3, "User:*", "*", 2, 2)
    async with on_stage(tmp_path / "old") as stage:
        rules = AclRules(stage.catalog._store, on_rules_change=lambda: None)
        await rules.start()
        await rules.add("000000000000", [rule])
        await rules.stop()
        backup, _ = await backed_up(stage, tmp_path / "backups")
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        rules = AclRules(stage.catalog._store, on_rules_change=lambda: None)
        await rules.start()
        assert list(rules.of("000000000000") or ()) == [rule]
        await rules.stop()


async def test_restored_subscriptions_that_call_endpoints_are_paused(tmp_path: Path) -> None:
    """A copy must not call the endpoints of the original."""
    confirmed, deleted = SubscriptionState.CONFIRMED, SubscriptionState.DELETED
    queue = queue_arn("000000000000", "us-east-1", "jobs")
    made = [
        make_subscription("https://a/"),
        make_subscription("https://b/", state=confirmed, start_offsets=(7, 9), secrets=b"s"),
        make_subscription("https://c/", state=confirmed, paused="too many failures"),
        make_subscription("https://d/", state=deleted, deleted_at_ms=5),
        make_subscription("ann@a.example", protocol="email", state=confirmed),
        make_subscription("+4912345678", protocol="sms", state=confirmed),
        make_subscription("https://e/", protocol="webhook", state=confirmed, webhook="{}"),
        make_subscription(queue, protocol="sqs", state=confirmed),
    ]
    rows = {subscription_key(one.id): one for one in made}
    key = SnsKeyEntry("-----BEGIN CERTIFICATE", b"wrapped", 1)
    async with on_stage(tmp_path / "old") as stage:
        store = stage.catalog._store
        for at, one in rows.items():
            await store.put(at, encode_subscription(one))
        await store.put(sns_key_key(1), msgspec.json.encode(key))
        backup, _ = await backed_up(stage, tmp_path / "backups")
    assert await laid_out(backup, tmp_path / "new") == 6
    assert await laid_out(backup, tmp_path / "pushing", is_pushing=True) == 0
    paused = {
        at: msgspec.structs.replace(one, paused=one.paused or "restored")
        for at, one in rows.items()
        if one.protocol != "sqs"
    }
    for name, expected in (("new", rows | paused), ("pushing", rows)):
        async with on_stage(tmp_path / name) as stage:
            entries, _ = await stage.catalog._store.list(SUBSCRIPTIONS_PREFIX)
            assert {each.key: decode_subscription(each.value) for each in entries} == expected
    async with on_stage(tmp_path / "new") as stage:
        kept = await stage.catalog._store.get(sns_key_key(1))
        assert kept is not None
        assert kept.value == msgspec.json.encode(key)


async def test_a_log_that_has_lost_its_beginning_keeps_its_offsets(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "old", log=SEGMENTS) as stage:
        topic = await stage.topic()
        for number in range(40):
            await stage.broker.call(Append(topic, 0, [message(f"{number:04}" + "x" * 2_000)]))
        for _ in range(3):
            got = await stage.broker.call(Lease(topic, LeaseRequest(10)))
            await stage.broker.call(Ack(topic, 0, [claim(one) for one in got]))
        assert await partition_of(stage, topic).clean() > 0
        start = partition_of(stage, topic).log.start_offset
        backup, manifest = await backed_up(stage, tmp_path / "backups")
    assert manifest.partitions[0].start_offset == start > 0
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        partition = partition_of(stage, topic)
        assert partition.log.start_offset == start
        found = await all_bodies(stage, topic)
        assert [int(body[:4]) for body in found] == list(range(30, 40))


async def test_what_compaction_has_emptied_leaves_no_gap(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "old", log=SMALL) as stage:
        topic = await compacted_topic(stage)
        for number in range(60):
            await put(stage, topic, (f"k{number % 3}", f"{number}" + "." * 80))
        assert await partition_of(stage, topic).compact() > 0
        end = partition_of(stage, topic).log.end_offset
        expected = await read(stage, topic)
        backup, _ = await backed_up(stage, tmp_path / "backups")
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        assert partition_of(stage, topic).log.end_offset == end
        assert await read(stage, topic) == expected
        await put(stage, topic, ("k9", "more"))
        assert (await read(stage, topic))[-1] == (end, "k9", "more")


async def test_records_deleted_from_the_middle_of_a_batch_stay_deleted(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "old") as stage:
        topic = await stream(stage)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch(*"abcdefghij")]))
        await stage.broker.call(DeleteRecords(topic, 0, 7))
        emptied = await stream(stage, "emptied")
        await stage.broker.call(AppendBatches(emptied, 0, acks=-1, batches=[batch(*"abc")]))
        await stage.broker.call(DeleteRecords(emptied, 0, -1))
        backup, manifest = await backed_up(stage, tmp_path / "backups")
    parts = {one.topic_id: one for one in manifest.partitions}
    part = parts[topic.topic_id]
    assert (part.start_offset, part.low_watermark, part.end_offset) == (0, 7, 10)
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        for one, start, end in ((topic, 7, 10), (emptied, 3, 3)):
            found = await stage.broker.call(Ends(one, 0))
            assert (found.start_offset, found.high_watermark) == (start, end)
        with pytest.raises(OffsetOutOfRange):
            await stage.broker.call(Fetch(topic, 0, offset=6, bytes_max=1, is_committed=False))


async def test_what_is_copied_is_not_dropped_meanwhile(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "old", log=SEGMENTS) as stage:
        topic = await stage.topic()
        for number in range(40):
            await stage.broker.call(Append(topic, 0, [message(f"{number:04}" + "x" * 2_000)]))

        async def finish_everything(count: int) -> None:
            if count == 1:
                while got := await stage.broker.call(Lease(topic, LeaseRequest(10))):
                    await stage.broker.call(Ack(topic, 0, [claim(one) for one in got]))
                assert await partition_of(stage, topic).clean() == 0, "it is being copied"

        backup, _ = await backed_up(stage, tmp_path / "backups", finish_everything)
        stage.clock.advance(600_000)
        assert await partition_of(stage, topic).clean() > 0, "not for ever"
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        assert len(await all_bodies(stage, topic)) == 40


async def test_a_beginning_that_goes_all_the_same_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_admin, "READ_BYTES", 8 * KIB)
    async with on_stage(tmp_path / "old", log=SEGMENTS) as stage:
        topic = await stage.topic()
        for number in range(40):
            await stage.broker.call(Append(topic, 0, [message(f"{number:04}" + "x" * 2_000)]))

        async def drop_some(count: int) -> None:
            if count == 3:
                got = [
                    one
                    for _ in range(3)
                    for one in await stage.broker.call(Lease(topic, LeaseRequest(10)))
                ]
                await stage.broker.call(Ack(topic, 0, [claim(one) for one in got]))
                stage.clock.advance(600_000)  # as if nobody had asked for long
                await partition_of(stage, topic).clean()
                admin_touched.append(count)

        admin_touched: list[int] = []
        monkeypatch.setattr(backup_admin, "IDLE_MS_MAX", 10_000_000)
        backup, manifest = await backed_up(stage, tmp_path / "backups", drop_some)
    assert admin_touched
    assert manifest.partitions[0].start_offset > 0
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        found = {int(body[:4]) for body in await all_bodies(stage, topic)}
        assert found >= set(range(30, 40)), "nobody has finished with these"


async def test_a_topic_that_is_deleted_meanwhile_is_not_in_it(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "old") as stage:
        kept, doomed = await stage.topic("kept"), await stage.topic("doomed", partitions=2)
        for topic in (kept, doomed):
            await stage.broker.call(Append(topic, 0, [message("hello")]))

        async def delete(count: int) -> None:
            if count == 1:
                await stage.catalog.delete(
                    doomed.account, doomed.region, doomed.name, now_ms=stage.clock.wall
                )

        backup, manifest = await backed_up(stage, tmp_path / "backups", delete)
    assert {one.topic_id for one in manifest.partitions} == {kept.topic_id}
    assert doomed.topic_id not in (backup / "definitions.jsonl").read_text()
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        assert [topic.name for topic in stage.catalog.all_topics()] == ["kept"]


async def test_batches_of_a_cluster_go_on_in_their_epoch_on_a_node_by_itself(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path / "old") as stage:
        topic = await stage.topic()
        partition = stage.broker.partitions
        await partition.open(topic)
        partition_of(stage, topic).journal.leader_epoch = 7
        await stage.broker.call(Append(topic, 0, [message("from epoch 7")]))
        backup, manifest = await backed_up(stage, tmp_path / "backups")
    assert manifest.partitions[0].last_epoch == 7
    await laid_out(backup, tmp_path / "new")
    async with on_stage(tmp_path / "new") as stage:
        await stage.broker.call(Append(topic, 0, [message("more")]))
        assert stage.broker.partitions.epoch_of(topic, 0) == 7
        assert await all_bodies(stage, topic) == ["from epoch 7", "more"]


async def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "old") as stage:
        await stage.topic()
        backup, _ = await backed_up(stage, tmp_path / "backups")
    data = tmp_path / "new"
    data.mkdir()
    (data / "master.key").write_text("a key may wait there")
    await laid_out(backup, data)
    with pytest.raises(FolderUnusable, match="not empty"):
        await laid_out(backup, data)
    assert (data / "master.key").read_text() == "a key may wait there"


async def test_etcd_on_another_machine_is_not_filled_without_tls(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "old") as stage:
        backup, _ = await backed_up(stage, tmp_path / "backups")
    given: dict[str, object] = {
        "node.data": str(tmp_path / "new"),
        "cluster.node": 1,
        "cluster.etcd": "10.0.0.1:2379",
        "internal.listen": "127.0.0.1:0",
    }
    config = node_config.load(given, {}).config
    with pytest.raises(ExposureRefused, match=r"etcd at 10\.0\.0\.1:2379"):
        restore(
            backup,
            read_manifest(backup),
            config,
            is_pushing=False,
            now_ms=1,
            progress=lambda _a, _b: None,
        )
    assert not (tmp_path / "new").exists()


async def test_a_restore_that_fails_takes_away_what_it_has_written(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "old") as stage:
        topic = await stage.topic(partitions=2)
        for partition in range(2):
            await stage.broker.call(Append(topic, partition, [message("hello")]))
        backup, _ = await backed_up(stage, tmp_path / "backups")
    victim = sorted(backup.rglob("*.log"))[-1]
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    data = tmp_path / "new"
    manifest = read_manifest(backup)
    with pytest.raises(BackupUnusable, match="checksum"):
        await asyncio.to_thread(
            restore,
            backup,
            manifest,
            config_for(data),
            is_pushing=False,
            now_ms=1,
            progress=lambda _a, _b: None,
        )
    assert {path.name for path in data.iterdir()} <= {"lock"}


async def test_backups_under_way_have_a_bound_and_end(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        admin = admin_of(stage)
        begun = [await admin.begin() for _ in range(backup_admin.BACKUPS_MAX)]
        with pytest.raises(Throttled):
            await admin.begin()
        await admin.end(begun[0].id)
        with pytest.raises(NotFound):
            await admin.read(begun[0].id, topic.topic_id, 0, 0)
        stage.clock.advance(backup_admin.IDLE_MS_MAX + 1)
        await admin.begin()
        with pytest.raises(NotFound):
            await admin.partitions(begun[1].id, after=0, limit=1)
        assert msgspec.json.decode(msgspec.json.encode(begun[2]))["partitions"] == 1
