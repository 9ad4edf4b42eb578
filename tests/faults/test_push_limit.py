"""A webhook with a fixed limit over partitions on several nodes: its endpoint never sees more
requests at once, also when nodes die or freeze or the webhook moves to another node. While that
happens the endpoint is slow, so that requests of the node before would still be in progress.

CI sends few messages and kills one node; ``PENSTOCK_PUSHES=100000 PENSTOCK_KILLS=10`` is the whole
test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.e2e.test_push import PushSite
from tests.faults.test_push_kills import LIMIT, PARTITIONS, home_of, victims
from tests.harness.cluster import PenstockCluster
from tests.harness.endpoint import Endpoint, Step
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

PUSHES = int(os.environ.get("PENSTOCK_PUSHES", "1000"))
KILLS = int(os.environ.get("PENSTOCK_KILLS", "1"))
PUSHED_SECONDS_MAX = 60.0 + PUSHES / 20  # only a hang takes so long
TIMEOUT_MS = 2_000
PATH = "/limit"
FAST = Step(delay_ms=1, is_tallied=True)
SLOW = Step(delay_ms=500, is_tallied=True)  # a busy machine must not make it a timeout


def test_an_endpoint_never_sees_more_requests_than_the_limit(tmp_path: Path) -> None:
    with Endpoint() as endpoint, PenstockCluster(tmp_path) as cluster:
        endpoint.plan(PATH, FAST)
        site = PushSite(list(cluster.nodes.values()))
        arn = site.topic("limit", PARTITIONS)
        settings: dict[str, Any] = {
            "concurrency": LIMIT,
            "timeout_ms": TIMEOUT_MS,
            "retry": {"min_ms": 100, "max_ms": 500},
        }
        home = home_of(site.webhook(arn, endpoint.url(PATH), **settings))
        produce(cluster.bootstrap, "sns.limit")
        for number in range(KILLS):
            wait_for(endpoint, PUSHES * (number + 1) // (KILLS + 2))
            led = elect_preferred(cluster.bootstrap)
            [away] = victims("leader" if number % 3 == 1 else "home", home, led)
            node, is_frozen = cluster.nodes[away], number % 3 == 2
            endpoint.plan(PATH, SLOW)
            wait_for_more(endpoint)
            node.freeze() if is_frozen else node.kill()
            wait_for_more(endpoint)
            node.thaw() if is_frozen else node.start()
            elect_preferred(cluster.bootstrap)
            wait_for_more(endpoint)
            endpoint.plan(PATH, FAST)
        wait_for(endpoint, PUSHES)
        seen = endpoint.tally(PATH)
        print(f"{seen.requests:,} requests, {KILLS} kills, at most {seen.at_once_max} at once")
    assert seen.bodies == PUSHES
    assert seen.at_once_max == LIMIT


def produce(bootstrap: str, topic: str) -> None:
    """Write numbered messages to all partitions."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "queue.buffering.max.messages": PUSHES,
        }
    )
    for number in range(PUSHES):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(PUSHED_SECONDS_MAX) == 0


def elect_preferred(bootstrap: str) -> dict[int, int]:
    """Let the first replica of each partition lead, as it did before a kill."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    led: dict[int, int] = {}

    def is_done() -> bool:
        everywhere = [TopicPartition("sns.limit", number) for number in range(PARTITIONS)]
        admin.elect_leaders(ElectionType.PREFERRED, everywhere).result(30)
        found = admin.list_topics("sns.limit", timeout=30).topics["sns.limit"].partitions
        led.update((number, one.leader) for number, one in found.items())
        return all(one.leader == one.replicas[0] for one in found.values())

    eventually(is_done, seconds=PUSHED_SECONDS_MAX, what="the first replicas lead")
    return led


def wait_for(endpoint: Endpoint, count: int) -> None:
    """Wait until the endpoint has got ``count`` different messages."""
    eventually(
        lambda: endpoint.tally(PATH).bodies >= count,
        seconds=PUSHED_SECONDS_MAX,
        what=f"{count:,} messages",
    )


def wait_for_more(endpoint: Endpoint) -> None:
    wait_for(endpoint, endpoint.tally(PATH).bodies + 2 * LIMIT)
