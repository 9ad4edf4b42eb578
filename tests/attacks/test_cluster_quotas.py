"""Quotas on three nodes: whichever node a tenant asks, and however it spreads its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy

import pytest
from tests.attacks.kit import ROOT, Operator
from tests.attacks.test_quotas import GROUP_MAX_SIZE_REACHED, POLICY_VIOLATION, Tenant
from tests.harness.cluster import PenstockCluster
from tests.harness.patience import eventually

NOT_COORDINATOR = 16
# The coordinator is not there yet, is being read, or is another node.
MOVING = (14, 15, NOT_COORDINATOR)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    secret = folder / "secret"
    secret.write_text(str(ROOT.secret_key))
    secret.chmod(0o600)
    env = {
        "PENSTOCK_AUTH__MODE": "on",
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    with PenstockCluster(folder, fsync="never", env=env) as running:
        yield running
        for node in running.nodes.values():
            node.assert_no_traceback()


def seen_from_all(cluster: PenstockCluster, same: Tenant) -> list[Tenant]:
    """The same tenant, one for each node that it asks."""
    found = []
    for node in cluster.nodes.values():
        tenant = copy(same)
        tenant.server, tenant.root = node, Operator(node)
        found.append(tenant)
    return found


def commit_somewhere(nodes: list[Tenant], group: str) -> tuple[int, int]:
    """The code, and which node coordinates the group."""

    def attempt() -> tuple[int, int] | None:
        for number, tenant in enumerate(nodes):
            with tenant.wire() as wire:
                code = tenant.commit(wire, group, "q")
            if code not in MOVING:
                return code, number
        return None

    found = eventually(attempt, seconds=30, what=f"a coordinator of {group}")
    assert found is not None
    return found


def await_used(nodes: list[Tenant], count: int) -> None:
    eventually(
        lambda: [tenant.used("partitions_max") for tenant in nodes] == [count] * 3,
        seconds=10,
        what=f"{count} partitions, as all nodes see it",
    )


def test_partitions_count_for_all_nodes(cluster: PenstockCluster) -> None:
    greedy = Tenant(cluster.nodes[1], Operator(cluster.nodes[1]))
    nodes = seen_from_all(cluster, greedy)
    greedy.limit(partitions_max=7)
    eventually(
        lambda: all(t.quotas()["quotas"]["partitions_max"] == 7 for t in nodes),
        seconds=10,
        what="the quota on all nodes",
    )
    for number, tenant in enumerate(nodes):
        with tenant.wire() as wire:
            assert tenant.topic(wire, f"t{number}", 2).error_code == 0
        await_used(nodes, 2 * (number + 1))
    for tenant in nodes:
        with tenant.wire() as wire:
            refused = tenant.topic(wire, "more", 2)
            assert refused.error_code == POLICY_VIOLATION
            assert "6 of 7 partitions" in refused.error_message
    greedy.sqs.close()


def test_groups_are_never_refused_below_the_quota_and_bounded_by_node(
    cluster: PenstockCluster,
) -> None:
    most = 4
    greedy = Tenant(cluster.nodes[1], Operator(cluster.nodes[1]))
    other = Tenant(cluster.nodes[2], Operator(cluster.nodes[2]))
    nodes = seen_from_all(cluster, greedy)
    for tenant in (greedy, other):
        tenant.sqs.create_queue(QueueName="q")
    greedy.limit(groups_max=most)
    eventually(
        lambda: all(t.quotas()["quotas"]["groups_max"] == most for t in nodes),
        seconds=10,
        what="the quota on all nodes",
    )
    made: Counter[int] = Counter()
    refused: Counter[int] = Counter()
    for number in range(60):
        code, node = commit_somewhere(nodes, f"g{number}")
        if code == 0:
            made[node] += 1
        else:
            assert code == GROUP_MAX_SIZE_REACHED
            assert made[node] == most, "refused below the quota"
            refused[node] += 1
    assert refused, "sixty groups are more than every node may have"
    assert [t.used("groups_max") for t in nodes] == [made[n] for n in range(3)]
    code, _ = commit_somewhere(seen_from_all(cluster, other), "new")
    assert code == 0
    for tenant in (greedy, other):
        tenant.sqs.close()
