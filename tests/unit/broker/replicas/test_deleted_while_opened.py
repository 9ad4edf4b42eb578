"""A topic that is deleted while a node begins to lead it: no error, the replica is closed."""

import logging
import threading
from pathlib import Path

import pytest
from tests.unit.broker.replicas.stage import cluster, settles, until

from penstock.metadata.cluster_entries import partition_key
from penstock.replication.replica import Role


async def test_a_topic_deleted_while_its_leader_reads_the_log_halts_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "before"))
        second = on.nodes[2]
        replica = second.replica(key)
        may_read = threading.Event()
        busy = [second.pool.submit(may_read.wait) for _ in range(2)]  # every thread of the node
        try:
            await on.elect(key, 2, is_awaited=False)
            await until(lambda: replica.replica.role is Role.LEADER)
            await on.nodes[1].catalog.delete(topic.account, topic.region, topic.name, now_ms=1)
            await until(lambda: second.catalog.find_id(topic.topic_id) is None)
            assert replica.is_changing_role
        finally:
            may_read.set()
        for one in busy:
            one.result(10)
        await until(lambda: not replica.is_changing_role)
        assert replica.replica.role is Role.LEADER
        assert replica.partition is None
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
        await on.store.delete(partition_key(key))  # as the manager does
        await until(lambda: all(node.replicators.find(key) is None for node in on.nodes.values()))
