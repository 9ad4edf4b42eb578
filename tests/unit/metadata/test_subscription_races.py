"""Random changes of subscriptions by two nodes at once, over one store. In the end both nodes must
have the views that a naive reader of the store computes."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.metadata.conftest import ACCOUNT, OTHER
from tests.unit.metadata.test_subscriptions import (
    CONFIRMED,
    DELETED,
    OTHER_TOPIC,
    REGION,
    TOPIC,
    Node,
    in_state,
    make,
    until,
    with_attributes,
)

from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.subscriptions import SUBSCRIPTIONS_PREFIX, decode_subscription
from penstock.model.errors import NotFound
from penstock.model.limits import CONFIRMATION_MS
from penstock.model.subscription import Subscription, SubscriptionState

ENDPOINTS = [f"https://{n}.example/" for n in range(4)]
OWNERS = {TOPIC: ACCOUNT, OTHER_TOPIC: OTHER}

steps = st.tuples(
    st.sampled_from(
        ["create", "create", "create", "change", "confirm", "retire", "delete", "clear", "sweep"]
    ),
    st.integers(0, 1),  # node
    st.sampled_from([TOPIC, OTHER_TOPIC]),
    st.sampled_from(ENDPOINTS),
)
rounds = st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=8)


class Race:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.last: dict[tuple[str, str], str] = {}  # id of the last one made for an endpoint

    async def step(self, kind: str, number: int, topic_id: str, endpoint: str) -> None:
        stored, place = self.nodes[number].stored, (topic_id, endpoint)
        if kind == "create":
            made = await stored.create(make(endpoint, topic_id, account=OWNERS[topic_id]))
            assert (made.topic_id, made.endpoint) == place
            assert made.state is not DELETED
            self.last[place] = made.id
        elif kind == "clear":
            await stored.delete_of_topic(topic_id)
        elif kind == "sweep":
            await stored.sweep(now_ms=1_000 + CONFIRMATION_MS, is_deleted=lambda _topic: False)
        elif place in self.last:
            await self._change(stored, kind, self.last[place])

    async def _change(self, stored: Any, kind: str, one: str) -> None:
        with suppress(NotFound):
            if kind == "change":
                await stored.change(one, lambda found: with_attributes(found, A=found.id[:2] * 9))
            elif kind == "confirm":
                await stored.change(one, lambda found: in_state(found, CONFIRMED))
            elif kind == "retire":
                await stored.change(one, lambda found: in_state(found, DELETED, 1_001))
            else:
                await stored.delete(one)


def folded(node: Node) -> dict[str, Subscription]:
    """What a listener believes to exist."""
    found: dict[str, Subscription] = {}
    for before, after in node.changes:
        if before is not None:
            assert found.pop(before.id) == before
        if after is not None:
            assert after.id not in found
            found[after.id] = after
    return found


def check(node: Node, rows: list[Subscription]) -> None:
    stored = node.stored
    live = sorted((row for row in rows if row.state is not DELETED), key=lambda row: row.id)
    assert folded(node) == {row.id: row for row in live}
    assert all(stored.find(row.id) == row for row in live)
    assert all(stored.find(row.id) is None for row in rows if row.state is DELETED)
    for topic_id, account in OWNERS.items():
        own = [row for row in live if row.topic_id == topic_id]
        assert sorted(stored.of_topic(topic_id), key=lambda row: row.id) == own
        assert list(stored.page_of_topic(topic_id, count=99)) == own
        assert list(stored.page(account, REGION, count=99)) == own
        for endpoint in ENDPOINTS:
            same = [row for row in own if row.endpoint == endpoint]
            assert len(same) <= 1
            found = stored.find_endpoint(topic_id, "https", endpoint)
            assert found == (same[0] if same else None)
        counts = Counter(row.state for row in rows if row.topic_id == topic_id)
        assert all(stored.count(topic_id, state) == counts[state] for state in SubscriptionState)
        assert stored.used(account) == sum(row.account == account for row in rows)
    assert stored._bytes.total == sum(row.size_bytes for row in rows)


async def race(folder: Path, plan: list[list[tuple[str, int, str, str]]]) -> None:
    store = await SqliteStore.open(folder / "metadata.db")
    nodes = [await Node(store).start() for _ in range(2)]
    running = Race(nodes)
    try:
        for together in plan:
            work: list[Coroutine[Any, Any, None]] = [running.step(*step) for step in together]
            await asyncio.gather(*work)
        entries, revision = await store.list(SUBSCRIPTIONS_PREFIX)
        versions = {entry.key: entry.version for entry in entries}
        for node in nodes:
            await until(lambda node=node: node.stored._rows._versions == versions)  # type: ignore
            check(node, [decode_subscription(entry.value) for entry in entries])
        assert revision >= max(versions.values(), default=0)
    finally:
        for node in nodes:
            await node.stop()
        await store.close()


@given(rounds)
@settings(max_examples=40, deadline=None)
def test_views_of_two_nodes_are_those_of_the_store(
    plan: list[list[tuple[str, int, str, str]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(race(Path(folder), plan))
