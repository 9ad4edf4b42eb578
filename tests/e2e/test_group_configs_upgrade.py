"""Group configs that were set below feature level 3 are known to every node after the raise."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.e2e.test_cluster_cli import ask, healthy
from tests.e2e.test_cluster_shares import LOCK, coordinator, set_config, shows
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

from penstock.model.levels import GROUP_CONFIGS_STORED
from penstock.wire.kafka.faults import ErrorCode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

SETTING = "PENSTOCK_CLUSTER__FEATURE_LEVEL_MAX"
GROUPS = [f"group-{number}" for number in range(12)]  # over all coordinators
LIMIT = "share.delivery.count.limit"
SECONDS_MAX = 200.0


def test_group_configs_move_to_the_store_when_the_level_is_raised(tmp_path: Path) -> None:
    earlier = {SETTING: str(GROUP_CONFIGS_STORED - 1)}
    with PenstockCluster(tmp_path, env=earlier) as cluster:
        healthy(cluster)
        check_rows(cluster)
        for node in cluster.nodes.values():
            assert node.stop() == 0
            del node.env[SETTING]
            node.start(seconds=SECONDS_MAX)
            healthy(cluster)
        raised = ask(cluster, "upgrade", "--to", str(GROUP_CONFIGS_STORED))
        assert raised.code == 0, raised
        wanted = {LOCK: ("17000", 8)}
        for group in GROUPS:
            for node in cluster.nodes.values():
                eventually(
                    partial(shows, node, group, wanted),
                    seconds=SECONDS_MAX,
                    what=f"node {node.number} shows the configs of {group}",
                )
        for number, node in cluster.nodes.items():
            assert set_config(node, f"new-{number}", LIMIT, "3") == 0
            assert "group configs not moved" not in node.stderr


def check_rows(cluster: PenstockCluster) -> None:
    """Only the coordinator knows configs, and only those of earlier versions can be set."""

    def is_set_at_the_coordinator_alone(group: str) -> bool:
        at = coordinator(cluster, group)  # it may move while leaders are handed back
        codes = {number: set_config(node, group, LOCK, "17000") for number, node in nodes.items()}
        expected = {number: 0 if number == at else ErrorCode.NOT_COORDINATOR for number in nodes}
        return codes == expected and set_config(nodes[at], group, LIMIT, "3") == (
            ErrorCode.INVALID_CONFIG
        )

    nodes = cluster.nodes
    for group in GROUPS:
        eventually(
            partial(is_set_at_the_coordinator_alone, group),
            seconds=SECONDS_MAX,
            what=f"the configs of {group} are set at its coordinator alone",
        )
