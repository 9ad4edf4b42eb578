"""Nodes that die while a webhook sends: nothing is lost, groups keep their order, the limit holds.

CI kills one node of each kind; ``PENSTOCK_KILLS=20`` kills twenty."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from tests.e2e.test_push import PushSite
from tests.harness.cluster import ClusterNode, PenstockCluster
from tests.harness.endpoint import Endpoint, Step
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

from penstock.model.subscription import Subscription, home_partition

KILLS = int(os.environ.get("PENSTOCK_KILLS", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 60 * KILLS)]

PARTITIONS = 6
LIMIT = 3
GROUPS = 12
AHEAD_MAX = 1_000  # messages that are published and not sent yet
NEXT_PUSH_SECONDS_MAX = 30.0
PATH = "/kills"


class Publisher(threading.Thread):
    """Publishes numbered messages of several groups, each group in order, until it is stopped.
    A request that failed is repeated, so a number can be in the topic twice. It waits for the
    endpoint when it is far ahead of it."""

    def __init__(self, site: PushSite, arn: str, endpoint: Endpoint, begin: int) -> None:
        super().__init__(name="publisher")
        self._site, self._arn = site, arn
        self._endpoint, self._begin = endpoint, begin
        self.is_ending = threading.Event()
        self.published = [0] * GROUPS

    def run(self) -> None:
        at = 0
        while not self.is_ending.is_set():
            late = self._begin + sum(self.published) - AHEAD_MAX
            if late > 0 and not has_more(self._endpoint, late):
                self.is_ending.wait(0.05)
                continue
            for group in range(GROUPS):
                text = f"{group}:{self.published[group]}"
                while True:
                    at = (at + 1) % len(self._site.sns)
                    try:
                        self._site.sns[at].publish(
                            TopicArn=self._arn, Message=text, MessageGroupId=f"g{group}"
                        )
                        break
                    except (BotoCoreError, ClientError):
                        self.is_ending.wait(0.1)
                self.published[group] += 1


def victims(kind: str, home: int, led: dict[int, int]) -> set[int]:
    others = {node for node in led.values() if node != led[home]}
    return {
        "home": {led[home]},
        "leader": {min(others)} if others else {led[home]},
        "both": {led[home], *([min(others)] if others else [])},
    }[kind]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
@pytest.mark.parametrize("kind", ["home", "leader", "both"])
def test_a_webhook_keeps_its_promises_when_nodes_die(
    tmp_path: Path, endpoint: Endpoint, kind: str
) -> None:
    begin = len(endpoint.ledger())
    endpoint.plan(PATH, Step(delay_ms=5))
    with PenstockCluster(tmp_path) as cluster:
        site = PushSite(list(cluster.nodes.values()))
        arn = site.topic("kills", PARTITIONS)
        settings: dict[str, Any] = {
            "concurrency": LIMIT,
            "ordered": "group",
            "timeout_ms": 5_000,
            "retry": {"min_ms": 200, "max_ms": 500},
        }
        hook = site.webhook(arn, endpoint.url(PATH), **settings)
        home = home_of(hook)
        publisher = Publisher(site, arn, endpoint, begin)
        publisher.start()
        try:
            for _ in range(KILLS):
                seen = len(endpoint.ledger(begin))
                eventually(partial(has_more, endpoint, begin + seen + 100), seconds=90, what="more")
                led = cluster.leaders("sns.kills")
                dead = victims(kind, home, led)
                kill_and_restart(endpoint, [cluster.nodes[number] for number in dead])
        finally:
            publisher.is_ending.set()
            publisher.join()
        wanted = {f"{g}:{n}" for g in range(GROUPS) for n in range(publisher.published[g])}
        eventually(
            lambda: {one.body for one in endpoint.ledger(begin)} >= wanted,
            seconds=120,
            what=f"all of {len(wanted)} messages",
        )
    judge(endpoint, begin)


def has_more(endpoint: Endpoint, count: int) -> bool:
    return bool(endpoint.ledger(count))


def home_of(hook: str) -> int:
    one = Subscription(hook, "", "", "", "", "", "", 0, start_offsets=(0,) * PARTITIONS)
    return home_partition(one)


def kill_and_restart(endpoint: Endpoint, dead: list[ClusterNode]) -> None:
    for node in dead:
        node.kill()
    seen, at = len(endpoint.ledger()), time.monotonic()
    if len(dead) == 1:  # the other two nodes go on
        eventually(
            lambda: len(endpoint.ledger()) > seen,
            seconds=NEXT_PUSH_SECONDS_MAX,
            what="the next push",
        )
    for node in dead:
        node.start()
    if len(dead) > 1:
        eventually(
            lambda: len(endpoint.ledger()) > seen,
            seconds=2 * NEXT_PUSH_SECONDS_MAX,
            what=f"the next push, since {time.monotonic() - at:.0f} s",
        )


def judge(endpoint: Endpoint, begin: int) -> None:
    seen = endpoint.ledger(begin)
    assert max(one.path_at_once for one in seen) <= LIMIT
    last: dict[str, int] = {}
    for one in seen:
        group, number = one.body.split(":")
        assert int(number) <= last.get(group, -1) + 1, f"{one.body} overtook others of its group"
        last[group] = max(last.get(group, -1), int(number))
    copies: dict[str, list[float]] = {}
    for one in seen:
        copies.setdefault(one.headers["webhook-id"], []).append(one.at_ns / 1e9)
    repeated = {key: times for key, times in copies.items() if len(times) > 1}
    twice = sum(len(times) - 1 for times in repeated.values())
    assert twice <= KILLS * LIMIT, f"{twice} requests were repeated: {repeated}"
