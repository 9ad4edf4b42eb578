"""What is written is committed, and who waits for it is answered, although nothing more is ever
appended: neither waits for the next one to come."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cluster.stage import cluster, settles, until

from penstock.log.log import Log, SyncJob


class _Held:
    """A sync that waits until it is let go."""

    def __init__(self, job: SyncJob, gate: threading.Event) -> None:
        self._job = job
        self._gate = gate

    def run(self) -> None:
        self._gate.wait()
        self._job.run()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)


async def test_what_a_leader_has_not_synced_it_syncs_as_a_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        log = on.nodes[1].replica(key).log
        gate, syncs = threading.Event(), list[SyncJob]()

        def begin_sync() -> Any:
            job = Log.begin_sync(log)
            if job is None or gate.is_set():
                return job
            syncs.append(job)
            return _Held(job, gate)

        finish = log.finish_sync
        monkeypatch.setattr(log, "begin_sync", begin_sync)
        monkeypatch.setattr(
            log, "finish_sync", lambda job: finish(job._job if isinstance(job, _Held) else job)
        )
        under_way = [asyncio.ensure_future(on.sent(1, topic, "first"))]
        await until(lambda: len(syncs) == 1)
        under_way.append(asyncio.ensure_future(on.sent(1, topic, "second")))
        await until(lambda: on.nodes[2].replica(key).log.durable_offset == 2)
        electing = asyncio.ensure_future(on.elect(key, 2))
        await until(lambda: on.row(key).leader == 2)
        gate.set()
        await settles(electing)
        await until(lambda: on.nodes[2].replica(key).replica.high_watermark == 2)
        assert [await settles(one) for one in under_way] == [[0], [1]]


async def test_who_waits_for_what_is_committed_already_is_answered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "one"))
        partition = on.nodes[1].replica(key).partition
        assert partition is not None
        await until(lambda: partition.journal.high_watermark == partition.log.end_offset)
        await settles(partition.journal.join().committed.wait())
