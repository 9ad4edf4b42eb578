"""A cluster of an earlier version becomes one of this version, node by node, while it is being sent
to: nothing fails, nothing is lost, nothing is there twice. Then its feature level is raised, and a
node of the earlier version finds no way in any more."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.e2e.test_cluster import Sender, client, made, taken
from tests.e2e.test_cluster_cli import ask, healthy, penstock
from tests.e2e.test_cluster_deletes import are_ends, deleted, ends, filled, leader_of
from tests.e2e.test_cluster_kafka import Produced, consumed
from tests.e2e.test_cluster_kafka import made as made_topic
from tests.e2e.test_push import PushSite, bodies
from tests.harness.cluster import ClusterNode, PenstockCluster
from tests.harness.endpoint import Endpoint, Step
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import ServerFailed
from tests.harness.sns_site import connect

from penstock.cli.terminal.failure import ExitCode
from penstock.model.levels import LEVEL_MAX, LOW_WATERMARK_FILES, PUSH, Levels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

BEFORE = LOW_WATERMARK_FILES - 1
EARLIER = {"PENSTOCK_CLUSTER__FEATURE_LEVEL_MAX": str(BEFORE)}
SECONDS_MAX = 200.0
HOOKS = [f"/restarted-{number}" for number in range(3)]
LIMIT = 2  # requests at once to each of them
UPGRADE_FIRST = (
    f"SNS needs feature level {PUSH}: upgrade all nodes, then run penstock cluster upgrade."
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    """Three nodes of an earlier version."""
    with PenstockCluster(tmp_path_factory.mktemp("cluster"), env=EARLIER) as cluster:
        yield cluster


def is_raised(node: ClusterNode) -> bool:
    return node.metrics()["penstock_feature_level"] == LEVEL_MAX


def everything(sqs: Any, queue_url: str) -> Counter[str]:
    """The bodies of all messages, deleted."""
    return Counter(message["Body"] for message in taken(sqs, queue_url))


class Publisher(Sender):
    """Publishes numbers to an SNS topic by way of some nodes in turn."""

    def __init__(self, urls: list[str], arn: str, *, start: int) -> None:
        super().__init__([], "", attempts=1)
        self._sns = [connect("sns", url, attempts=1) for url in urls]
        self._arn, self._number = arn, start

    def run(self) -> None:
        while not self._end.is_set():
            sns, body = self._sns[self._number % len(self._sns)], str(self._number)
            self._number += 1
            try:
                sns.publish(TopicArn=self._arn, Message=body)
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            else:
                self.answered.add(body)


class Producing(threading.Thread):
    """An idempotent producer that goes on until it is told to end."""

    def __init__(self, cluster: PenstockCluster, topic: str) -> None:
        super().__init__()
        self.produced = Produced(cluster, topic)
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.is_set():
            self.produced.send(50)

    def end(self) -> None:
        self._end.set()
        self.join()


def said(cluster: PenstockCluster, failed: list[str]) -> str:
    """What went wrong, and what the nodes said about it."""
    lines = [f"{len(failed)} failed: {failed[:3]}"]
    for node in cluster.nodes.values():
        lines += [f"node {node.number}:", node.stderr_tail(40)]
    return "\n".join(lines)


def replace(cluster: PenstockCluster, victim: int, path: str) -> None:
    """One node by one of this version, while messages are sent by way of the others."""
    node = cluster.nodes[victim]
    others = [one for number, one in cluster.nodes.items() if number != victim]
    safe = ask(cluster, "wait-safe", "--node", str(victim), "--timeout", "120", by=others[0].number)
    assert safe.code == 0, safe
    sender = Sender([one.url for one in others], path, attempts=1)
    sender.start()
    sender.wait_for(20, seconds=SECONDS_MAX)
    assert node.stop() == 0
    del node.env[next(iter(EARLIER))]
    sender.wait_for(20, seconds=SECONDS_MAX)
    node.start(seconds=SECONDS_MAX)
    sender.wait_for(20, seconds=SECONDS_MAX)
    sender.end()
    assert not sender.failed, said(cluster, sender.failed)
    found = everything(client(others[0].url, attempts=5), others[0].url + path)
    assert len(found) == found.total() == len(sender.answered)


def test_a_cluster_begins_with_what_its_first_node_speaks(cluster: PenstockCluster) -> None:
    told = healthy(cluster)
    assert told["level"] == {"in_force": BEFORE, "wanted": None, "latest": BEFORE}
    assert {node["feature_level"] for node in told["nodes"]} == {BEFORE}
    refused = ask(cluster, "upgrade", "--to", str(LEVEL_MAX))
    assert refused.code == ExitCode.CONFLICT
    assert "node 1 (n1)" in refused.err


def test_below_the_level_a_deletion_of_records_moves_the_end(cluster: PenstockCluster) -> None:
    filled(cluster, "cut")
    assert deleted(cluster.bootstrap, "cut", 7) == 7
    assert ends(cluster.bootstrap, "cut") == (7, 31)


def test_below_the_level_push_is_refused_and_writes_nothing(cluster: PenstockCluster) -> None:
    topic = {"TopicArn": "arn:aws:sns:us-east-1:000000000000:orders"}
    before = set(cluster.etcd.entries())
    for node in cluster.nodes.values():
        sns = connect("sns", node.url, attempts=1)
        for action, fields in (
            ("create_topic", {"Name": "orders"}),
            ("subscribe", {**topic, "Protocol": "sqs", "Endpoint": "arn:aws:sqs:us-east-1:1:q"}),
            ("publish", {"PhoneNumber": "+4915112345678", "Message": "to the outbox"}),
            ("set_sms_attributes", {"attributes": {"DefaultSMSType": "Promotional"}}),
        ):
            with pytest.raises(ClientError) as refused:
                getattr(sns, action)(**fields)
            error = refused.value.response["Error"]
            assert error["Code"] == "ServiceUnavailable"
            assert error["Message"] == UPGRADE_FIRST
    made(cluster, "hooked")
    tried = penstock(
        *("subscription", "create", "hooked", "http://127.0.0.1:8443/hook"),
        env={"PENSTOCK_ENDPOINT": cluster.nodes[2].url},
    )
    assert (tried.code, "penstock cluster upgrade" in tried.err) == (ExitCode.UNREACHABLE, True)
    added = {key.removeprefix("/penstock/penstock") for key in {*cluster.etcd.entries()} - before}
    assert not [key for key in added if key.startswith(("/subscriptions", "/sns", "/books"))]
    assert not {"__deliveries", "__outbox"} & {key.rpartition("/")[2] for key in added}


def test_it_is_upgraded_under_load_and_then_raised(cluster: PenstockCluster) -> None:
    path = made(cluster, "upgraded", VisibilityTimeout="600")
    made_topic(cluster, "upgraded-topic")
    producing = Producing(cluster, "upgraded-topic")
    producing.start()
    try:
        for victim in (1, 2, 3):
            replace(cluster, victim, path)
            if victim < 3:
                mixed = healthy(cluster)
                assert mixed["level"]["latest"] == BEFORE
                tried = ask(cluster, "upgrade", "--to", str(LEVEL_MAX), "--dry-run")
                assert (tried.code, tried.json["is_done"]) == (ExitCode.CONFLICT, False)
                assert [line[:11] for line in tried.json["obstacles"]] == [
                    f"node {one} (n{one})" for one in range(victim + 1, 4)
                ]
        told = healthy(cluster)
        assert told["level"] == {"in_force": BEFORE, "wanted": None, "latest": LEVEL_MAX}
        assert "penstock cluster upgrade" in told["remarks"][0]
        assert ask(cluster, "upgrade", "--dry-run").json["is_done"] is False
        raised = ask(cluster, "upgrade")
        assert (raised.code, raised.json["level"], raised.json["to"]) == (0, BEFORE, LEVEL_MAX)
        assert raised.json["is_done"] is True
        for node in cluster.nodes.values():
            eventually(
                partial(is_raised, node), seconds=SECONDS_MAX, what=f"node {node.number} has heard"
            )
    finally:
        producing.end()
    produced = producing.produced
    assert not produced.failed, said(cluster, produced.failed)
    found = consumed(cluster, "upgraded-topic", "checker", count=len(produced.written), seconds=120)
    assert sorted(found) == sorted(produced.written)  # nothing lost, nothing twice


def test_at_the_level_it_does_not_and_what_was_deleted_before_stays_so(
    cluster: PenstockCluster,
) -> None:
    assert ends(cluster.bootstrap, "cut") == (7, 31)
    assert deleted(cluster.bootstrap, "cut", 8) == 8
    assert ends(cluster.bootstrap, "cut") == (8, 31)
    victim = cluster.nodes[leader_of(cluster, "cut")]
    victim.kill()
    others = ",".join(node.kafka for node in cluster.nodes.values() if node is not victim)
    eventually(partial(are_ends, others, "cut", (8, 31)), seconds=SECONDS_MAX, what="a new leader")
    victim.start(seconds=SECONDS_MAX)
    healthy(cluster)


def test_push_loses_nothing_while_node_after_node_is_restarted(cluster: PenstockCluster) -> None:
    nodes = list(cluster.nodes.values())
    site = PushSite(list(nodes))
    arn = site.topic("restarted", 3)
    url, queue = site.queue("copies")
    raw = {"RawMessageDelivery": "true"}
    site.sns[1].subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue, Attributes=raw)
    with Endpoint() as endpoint:
        for path in HOOKS:  # their homes are on all nodes
            endpoint.plan(path, Step(delay_ms=20))
            site.webhook(arn, endpoint.url(path), concurrency=LIMIT, timeout_ms=1_000)
        published: set[str] = set()
        unknown = 0  # a leader may change during a request, and the client does not retry
        for node in nodes:
            others = [one.url for one in nodes if one is not node]
            by = node.number % len(nodes) + 1
            safe = ask(cluster, "wait-safe", "--node", str(node.number), by=by)
            assert safe.code == 0, safe
            sender = Publisher(others, arn, start=1_000_000 * node.number)
            sender.start()
            try:
                sender.wait_for(10, seconds=SECONDS_MAX)
                node.restart(seconds=SECONDS_MAX)
                sender.wait_for(10, seconds=SECONDS_MAX)
            finally:
                sender.end()
            failed = [each for each in sender.failed if "Outcome unknown" not in each]
            assert not failed, said(cluster, failed)
            unknown += len(sender.failed)
            published |= sender.answered
        for path in HOOKS:
            eventually(
                lambda path=path: {*bodies(endpoint, path)} >= published,  # type: ignore[misc]
                seconds=SECONDS_MAX,
                what=f"all requests to {path}",
            )
        seen = endpoint.ledger()
    at_once = {path: max(one.path_at_once for one in seen if one.target == path) for path in HOOKS}
    assert max(at_once.values()) <= LIMIT, at_once
    again = len(seen) - len(HOOKS) * len(published)
    most = len(HOOKS) * (LIMIT * len(nodes) + unknown)
    assert again <= most, "only requests that were in progress are sent again"
    copies = site.received_bodies(url, lambda found: {*found} >= published)
    assert len({*copies} - published) <= unknown


def test_a_node_of_the_earlier_version_is_refused_with_the_reason(cluster: PenstockCluster) -> None:
    node = cluster.nodes[3]
    assert node.stop() == 0
    said_before = len(node.stderr.splitlines())
    node.env.update(EARLIER)
    with pytest.raises(ServerFailed, match="ended before it was ready"):
        node.start(seconds=SECONDS_MAX)
    what, why, do = node.stderr.splitlines()[said_before:]
    assert what == "error: the server did not start"
    assert why == (
        f"  why: this node supports feature {Levels(highest=BEFORE)}, but the cluster is at level"
        f" {LEVEL_MAX}: run a newer version of Penstock on this node"
    )
    assert do.startswith("   do: run a version that supports the feature level of the cluster")
    lowered = ask(cluster, "upgrade", "--to", str(BEFORE))
    assert (lowered.code, "cannot be lowered" in lowered.err) == (1, True)
    for name in EARLIER:
        del node.env[name]
    node.start(seconds=SECONDS_MAX)
    healthy(cluster)


def test_the_metrics_of_all_nodes_agree_on_their_cluster(cluster: PenstockCluster) -> None:
    healthy(cluster)
    told: dict[int, dict[str, float]] = {}
    troubles = ("partitions_under_replicated", "partitions_below_minimum", "replicas_halted")

    def agree() -> bool:
        told.update({number: node.metrics() for number, node in cluster.nodes.items()})
        managing = [one for one in told.values() if one["penstock_manager"]]
        led = sum(one["penstock_partitions_led"] for one in told.values())
        return (
            len(managing) == 1
            and led == managing[0]['penstock_cluster_partitions{state="led"}'] > 0
            and managing[0]['penstock_cluster_partitions{state="leaderless"}'] == 0
            and sum(one["penstock_replicas"] for one in told.values()) == 3 * led
            and not any(one[f"penstock_{name}"] for one in told.values() for name in troubles)
        )

    # Leaders go back to a node that has come, a few seconds after it has.
    eventually(agree, seconds=SECONDS_MAX, what="the same told by all")
    for one in told.values():
        assert one["penstock_lease_left_seconds"] > 0
        assert one['penstock_store_request_duration_seconds_count{request="txn"}'] > 0
    for name in (
        'internal_connections{way="in"}',
        'internal_connections{way="out"}',
        'replica_fetches_total{side="asked"}',
        'replica_fetches_total{side="served"}',
        'replicated_bytes_total{way="in"}',
        'replicated_bytes_total{way="out"}',
        'passed_on_total{outcome="done"}',
        'in_sync_changes_total{change="joined"}',
        "manager_passes_total",
    ):  # a node that was just started may lead nothing yet
        assert sum(one[f"penstock_{name}"] for one in told.values()) > 0, name


def test_no_node_had_an_exception_that_nobody_expected(cluster: PenstockCluster) -> None:
    """Last: over all that happened to them above."""
    for node in cluster.nodes.values():
        node.assert_no_traceback()
