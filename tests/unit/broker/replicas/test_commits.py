"""What is written is committed, and who waits for it is answered, although nothing more is ever
appended: neither waits for the next one to come."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.replicas.stage import cluster, settles, until

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


class _SlowDisk:
    """Of a log: the first sync waits until it is let go."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.held = 0
        self._log = log
        self._finish = log.finish_sync
        monkeypatch.setattr(log, "begin_sync", self._begin)
        monkeypatch.setattr(log, "finish_sync", self._end)

    def _begin(self) -> Any:
        job = Log.begin_sync(self._log)
        if job is None or self.gate.is_set():
            return job
        self.held += 1
        return _Held(job, self.gate)

    def _end(self, job: Any) -> None:
        self._finish(job._job if isinstance(job, _Held) else job)


@pytest.mark.parametrize("more", [(), ("second",)])
async def test_what_a_leader_has_not_synced_is_committed_under_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """A sync that is under way when it leads no more, and what no sync had been begun for."""
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        disk = _SlowDisk(on.nodes[1].replica(key).log, monkeypatch)
        under_way = [asyncio.ensure_future(on.sent(1, topic, "first"))]
        await until(lambda: disk.held == 1)
        under_way += [asyncio.ensure_future(on.sent(1, topic, body)) for body in more]
        count = len(under_way)
        await until(lambda: on.nodes[2].replica(key).log.durable_offset == count)
        electing = asyncio.ensure_future(on.elect(key, 2))
        await until(lambda: on.row(key).leader == 2)
        disk.gate.set()
        await settles(electing)
        await until(lambda: on.nodes[2].replica(key).replica.high_watermark == count)
        assert [await settles(one) for one in under_way] == [[n] for n in range(count)]


async def test_who_waits_for_what_is_committed_already_is_answered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "one"))
        partition = on.nodes[1].replica(key).partition
        assert partition is not None
        await until(lambda: partition.journal.high_watermark == partition.log.end_offset)
        await settles(partition.journal.join().committed.wait())
