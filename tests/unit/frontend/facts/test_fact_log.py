"""The log that a node writes facts to, held by several: what it finds there of its earlier life."""

import asyncio
import secrets
from pathlib import Path

import pytest
from tests.unit.broker.replicas.stage import WAIT_SECONDS, Cluster, cluster, settles, until
from tests.unit.frontend.counted import ACCOUNT, REGION, Ids, records_of

from penstock.frontend.facts.fact_log import Fact, FactLog
from penstock.model.calls import Ends
from penstock.model.topic import Kind
from penstock.telemetry.clock import SystemClock

NAME = "__audit"
RETENTION_MS = 3_600_000
CONFIGS = {"retention.ms": str(RETENTION_MS)}


def log_on(made: Cluster, ids: Ids) -> FactLog:
    """By way of node 1, which leads."""
    return FactLog(
        NAME,
        broker=made.nodes[1].broker,
        catalog=made.nodes[1].catalog,
        next_producer_id=ids.next_id,
        namespace=(ACCOUNT, REGION),
        clock=SystemClock(),
        entropy=secrets.token_bytes,
        retention_ms=RETENTION_MS,
    )


async def test_what_an_earlier_process_had_under_way_is_waited_for_and_found(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, nodes=2) as made:
        topic, key = await made.topic(NAME, replicas=(1, 2), kind=Kind.STREAM, configs=CONFIGS)
        ids = Ids()
        earlier = log_on(made, ids)
        earlier.offer([Fact(b"n2", b"first")])
        await settles(earlier.settle())
        made.nodes[2].is_cut = True  # it holds up what is written from now on
        earlier.offer([Fact(b"n2", b"under way")])
        writing = asyncio.create_task(earlier.settle())
        leader = made.nodes[1].replica(key)
        await until(lambda: leader.log.end_offset == 2)
        writing.cancel()  # as a process that is killed
        await asyncio.wait((writing,))
        assert (await made.nodes[1].broker.call(Ends(topic, 0))).high_watermark == 1
        finding = asyncio.create_task(log_on(made, ids).newest(b"n2"))
        done, _ = await asyncio.wait((finding,), timeout=0.2)
        assert not done, "it may not look before all of it is committed"
        made.nodes[2].is_cut = False
        await settles(finding)
        found = finding.result()
        assert found is not None
        assert (found.offset, found.value) == (1, b"under way")
        values = [record.value for record in await records_of(made.nodes[1].broker, topic)]
        assert values == [b"first", b"under way"], "readers see nothing of how it was done"


async def test_an_attempt_that_is_never_answered_is_given_up_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repetition that joins in the very turn of its commit is one that nobody answers."""
    monkeypatch.setattr("penstock.frontend.facts.fact_log.ATTEMPT_SECONDS_MAX", 0.5)
    async with cluster(tmp_path, nodes=2) as made:
        topic, key = await made.topic(NAME, replicas=(1, 2), kind=Kind.STREAM, configs=CONFIGS)
        made.nodes[2].is_cut = True
        log = log_on(made, Ids())
        log.offer([Fact(b"n1", b"once")])
        first = asyncio.create_task(log.settle())
        leader = made.nodes[1].replica(key)
        await until(lambda: leader.log.durable_offset == 1)
        first.cancel()
        await asyncio.wait((first,))
        again = asyncio.create_task(log.settle())
        assert leader.partition is not None
        journal = leader.partition.journal
        async with asyncio.timeout(WAIT_SECONDS):
            while journal._flush is None:
                await asyncio.sleep(0)
        journal.replicated(1)  # in the turn in which the repetition has joined
        await settles(again)
        assert [one.value for one in await records_of(made.nodes[1].broker, topic)] == [b"once"]


async def test_a_node_that_has_written_nothing_finds_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as made:
        await made.topic(NAME, replicas=(1, 2), kind=Kind.STREAM, configs=CONFIGS)
        ids = Ids()
        other = log_on(made, ids)
        other.offer([Fact(b"n1", b"%d" % number) for number in range(5)])
        await settles(other.settle())
        log = log_on(made, ids)
        assert await settles(log.newest(b"n2")) is None
        log.offer([Fact(b"n2", b"its first")])
        await settles(log.settle())
        assert log.trouble is None
