"""Streams groups begin with their feature level: before, nothing is written that an older node
could not read; after the raise, the same request is served."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacks.frames import Wire
from tests.e2e.test_cluster_cli import ask, healthy
from tests.e2e.test_cluster_kafka import made
from tests.e2e.test_cluster_shares import coordinator
from tests.harness.cluster import ClusterNode, PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

from penstock.model.levels import STREAMS_GROUPS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

SETTING = "PENSTOCK_CLUSTER__FEATURE_LEVEL_MAX"
SECONDS_MAX = 200.0


def beat(
    cluster: PenstockCluster, group: str, member: str = "m", epoch: int = 0
) -> tuple[int, int]:
    """Error code and member epoch."""
    is_join = epoch == 0
    request = StreamsGroupHeartbeatRequest(
        group,
        member,
        epoch,
        -1,
        rebalance_timeout_ms=60_000 if is_join else -1,
        topology=Topology(0, [Subtopology("0", ["t"])]) if is_join else None,
        active_tasks=[] if is_join else None,
        standby_tasks=[] if is_join else None,
        warmup_tasks=[] if is_join else None,
        process_id="p" if is_join else None,
    )
    with Wire(cluster.nodes[coordinator(cluster, group)]) as wire:
        found = wire.ask_for("StreamsGroupHeartbeat", 0, request)
    return found.error_code, found.member_epoch


def is_served(cluster: PenstockCluster, group: str, epoch: int) -> bool:
    """Whether the member is known at its epoch."""
    number = coordinator(cluster, group)
    if number not in cluster.nodes or not cluster.nodes[number].is_running:
        return False  # no node was elected yet
    return beat(cluster, group, epoch=epoch) == (ErrorCode.NONE, epoch)


def has_feature(node: ClusterNode) -> bool:
    with Wire(node) as wire:
        found = wire.ask("ApiVersions", 4, client_software_name="test", client_software_version="1")
    return "streams.version" in {one.name for one in found.finalized_features}


def test_streams_groups_begin_when_the_level_is_raised(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path, env={SETTING: str(STREAMS_GROUPS - 1)}) as cluster:
        healthy(cluster)
        made(cluster, "t", partitions=3)
        groups = [f"group-{number}" for number in range(6)]  # over all coordinators
        for group in groups:
            assert beat(cluster, group)[0] == ErrorCode.UNSUPPORTED_VERSION
        assert not any(has_feature(node) for node in cluster.nodes.values())
        for node in cluster.nodes.values():
            assert node.stop() == 0
            del node.env[SETTING]
            node.start()
            healthy(cluster)
        assert beat(cluster, groups[0])[0] == ErrorCode.UNSUPPORTED_VERSION, "not raised yet"
        raised = ask(cluster, "upgrade", "--to", str(STREAMS_GROUPS))
        assert raised.code == 0, raised
        for node in cluster.nodes.values():
            eventually(
                lambda node=node: has_feature(node),  # type: ignore[misc]
                seconds=SECONDS_MAX,
                what="the feature is announced",
            )
        epochs = {}
        for group in groups:
            code, epochs[group] = beat(cluster, group)
            assert code == ErrorCode.NONE
        # Members are rows: another node coordinates the group and knows them.
        victim = cluster.nodes[coordinator(cluster, groups[0])]
        victim.kill()
        for group in groups:
            eventually(
                lambda group=group: is_served(cluster, group, epochs[group]),  # type: ignore[misc]
                seconds=SECONDS_MAX,
                what=f"{group} goes on",
            )
        victim.start()
