"""Nodes die while a webhook and a queue get the messages of a topic. Then the Spark job says what
became of each message, and that must be what the endpoint and the queues have.

CI kills one node; ``PENSTOCK_KILLS=10`` kills ten, one after the other."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka.admin import AdminClient
from tests.compat.kafka.confluent import read_all
from tests.e2e.test_push import PushSite
from tests.harness.cluster import ClusterNode, PenstockCluster
from tests.harness.endpoint import Endpoint, Seen, Step
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.sns_site import connect
from tests.pipeline.stage import Notes, context_of

from penstock.model.subscription import Subscription, home_partition
from penstock.pipeline.jobs import deliveries, delivery_balance
from penstock.pipeline.lake import Lake
from penstock.wire.facts import deliveries as rows
from penstock.wire.facts import usage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("PENSTOCK_KILLS", "1"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900 + 90 * KILLS),
    pytest.mark.faults,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

PARTITIONS = 3
REQUESTS_BETWEEN_KILLS = 150
TOPIC, PATH = "sns.ledger", "/ledger"
PAUSE_SECONDS = 0.05  # between requests of the publisher: the endpoint keeps up
USAGE_FLUSH_MS = 1_000
TIMEOUT_MS = 2_000  # of a request
WEBHOOK: dict[str, Any] = {
    "dead_letter": "dead",
    "timeout_ms": TIMEOUT_MS,
    "retry": {"min_ms": 100, "max_ms": 300, "attempts_max": 4},
}
STATUSES = {200: 80, 503: 12, 422: 8}  # with their weights; 503 is tried again, 422 is not
FINAL = ("delivered", "dead")
COPY_SECONDS = 1.0  # in which a message is copied to the queue after its request has ended

Place = tuple[int, int]  # partition, offset


class Publisher(threading.Thread):
    """Publishes messages until it is stopped, every text once: a request that failed is not
    repeated, so the topic may have its messages or not."""

    def __init__(self, site: PushSite, arn: str) -> None:
        super().__init__(name="publisher")
        self._clients = [connect("sns", each.meta.endpoint_url, attempts=1) for each in site.sns]
        self._arn = arn
        self.is_ending = threading.Event()
        self.confirmed: list[str] = []
        self.spans: list[tuple[float, float]] = []  # of the request of each message

    def run(self) -> None:
        number = 0
        while not self.is_ending.is_set():
            texts = [f"m{number + n}" for n in range(10)]
            number += 10
            began = time.monotonic()
            entries = [{"Id": text, "Message": text} for text in texts]
            client = self._clients[number // 10 % len(self._clients)]
            try:
                reply = client.publish_batch(TopicArn=self._arn, PublishBatchRequestEntries=entries)
                self.confirmed += [each["Id"] for each in reply["Successful"]]
            except (BotoCoreError, ClientError):
                self.is_ending.wait(0.1)
            self.spans += [(began, time.monotonic())] * 10
            self.is_ending.wait(PAUSE_SECONDS)


class Kill(NamedTuple):
    node: str
    at: float  # monotonic


class Loss(NamedTuple):
    """A time before a kill of which facts may be lost."""

    begin: float
    end: float

    def has(self, begin: float, end: float) -> bool:
        return self.begin <= end and begin <= self.end


def losses(kills: Sequence[Kill], written_ms: Callable[[str], Iterable[int]]) -> list[Loss]:
    """Return when requests were made whose facts the kills may have lost. ``written_ms`` returns
    the wall times up to which a node has written all rows."""
    ahead = time.time() - time.monotonic()
    found = []
    for kill in kills:
        times = [at_ms / 1_000 - ahead for at_ms in written_ms(kill.node)]
        last = max((at for at in times if at <= kill.at), default=0.0)
        # A request that was under way at that time is noted when it ends.
        found.append(Loss(last - TIMEOUT_MS / 1_000, kill.at))
    return found


def is_lost(found: Sequence[Loss], begin: float, end: float | None = None) -> bool:
    return any(loss.has(begin, begin if end is None else end) for loss in found)


def read(kafka: str, topic: str) -> list[Any]:
    partitions = AdminClient({"bootstrap.servers": kafka}).list_topics(topic, timeout=30)
    return read_all(kafka, topic, len(partitions.topics[topic].partitions))


def texts(kafka: str, topic: str) -> list[str]:
    return [each.value().decode() for each in read(kafka, topic)]


def home_of(hook: str) -> int:
    one = Subscription(hook, "", "", "", "", "", "", 0, start_offsets=(0,) * PARTITIONS)
    return home_partition(one)


def has_more(endpoint: Endpoint, count: int) -> bool:
    return bool(endpoint.ledger(count))


def kill_and_restart(endpoint: Endpoint, node: ClusterNode) -> Kill:
    seen = len(endpoint.ledger())
    eventually(
        partial(has_more, endpoint, seen + REQUESTS_BETWEEN_KILLS), seconds=90, what="more requests"
    )
    node.kill()
    kill, seen = Kill(f"n{node.number}", time.monotonic()), len(endpoint.ledger())
    eventually(partial(has_more, endpoint, seen), seconds=60, what="the next request")
    node.start()
    return kill


class Books:
    """What happened, without the job: requests at the endpoint, and what the logs have."""

    def __init__(self, kafka: str, requests: Sequence[Seen], kills: Sequence[Kill]) -> None:
        self.requests = requests
        # The last request decides: nothing is sent after an ack.
        self.last = {each.body: each for each in requests}
        records = read(kafka, TOPIC)
        self.messages = {
            each.value().decode(): (each.partition(), each.offset()) for each in records
        }
        assert len(self.messages) == len(records), "a text was published twice"
        facts = [rows.decode(each.value()) for each in read(kafka, "__deliveries")]
        self.rows = [row for each in facts for row in each.columns.rows()]
        # One node at a time sends, and writes its rows in order: only the last can be missing.
        self.losses = losses(kills, lambda _: [row.at_ms for row in self.rows])

    def state(self, text: str) -> str:
        return "delivered" if self.last[text].status == 200 else "dead"

    def unrecorded(self) -> set[str]:
        """Messages whose last request has no row."""
        written = {(row.partition, row.offset, row.outcome) for row in self.rows}
        places = self.messages.items()
        return {text for text, place in places if (*place, self.state(text)) not in written}

    def lost_at(self) -> list[float]:
        """When the requests were made that have no row."""
        return [self.last[text].at_ns / 1e9 for text in self.unrecorded()]

    def is_settled(self) -> bool:
        """Return whether each row is there, or its node was killed before it could write it."""
        return all(is_lost(self.losses, at) for at in self.lost_at())


def test_the_job_balances_to_the_message_after_kills(spark: SparkSession, tmp_path: Path) -> None:
    env = {"PENSTOCK_USAGE__FLUSH_MS": str(USAGE_FLUSH_MS)}
    with Endpoint() as endpoint, PenstockCluster(tmp_path / "cluster", env=env) as cluster:
        chance = Random(7)
        statuses = chance.choices([*STATUSES], [*STATUSES.values()], k=2_000 * (KILLS + 1))
        endpoint.plan(PATH, *(Step(status=each) for each in statuses), Step())
        site = PushSite(list(cluster.nodes.values()))
        arn, (_, queue) = site.topic("ledger", PARTITIONS), site.queue("copies")
        site.queue("dead")
        raw = {"RawMessageDelivery": "true"}
        copied = site.sns[0].subscribe(
            TopicArn=arn, Protocol="sqs", Endpoint=queue, Attributes=raw, ReturnSubscriptionArn=True
        )["SubscriptionArn"]
        hook = site.webhook(arn, endpoint.url(PATH), **WEBHOOK)
        publisher = Publisher(site, arn)
        publisher.start()
        try:
            kills = []
            for number in range(KILLS):
                # The home has rows to lose. The other nodes write them, and copy to the queue.
                home = cluster.leaders(TOPIC)[home_of(hook)]
                victim = home if number % 2 == 0 else 1 + (number // 2 + home) % 3
                kills.append(kill_and_restart(endpoint, cluster.nodes[victim]))
        finally:
            publisher.is_ending.set()
            publisher.join()

        kafka = cluster.nodes[1].kafka
        eventually(partial(is_finished, site, hook), seconds=180, what="all deliveries")

        def are_copied() -> bool:
            return {*texts(kafka, "copies")} >= {*texts(kafka, TOPIC)}

        eventually(are_copied, seconds=60, what="all copies")

        def settled() -> Books | None:
            """The books when all rows are written that were not lost."""
            books = Books(kafka, endpoint.ledger(), kills)
            return books if books.is_settled() else None

        books = eventually(settled, seconds=60, what="the rows of all requests")
        assert books is not None
        verify = Verify(spark, cluster.nodes[1], tmp_path)
        assert {*publisher.confirmed} <= books.messages.keys(), "a published message is lost"
        judge_webhook(books, verify, hook)
        judge_letters(books, texts(kafka, "dead"))
        copies = texts(kafka, "copies")
        judge_queue(books, verify, copied.rpartition(":")[2], copies)

        def judged() -> bool:
            facts = [usage.decode(each.value()) for each in read(kafka, "__usage")]
            return judge_usage(books, publisher, facts, kills, len(copies))

        eventually(judged, seconds=30, what="usage of all requests that were not lost")


def is_finished(site: PushSite, subscription: str) -> bool:
    return bool(site.ask("GET", f"/subscriptions/{subscription}")["lag"] == 0)


class Verify:
    """The job, after it has archived all rows."""

    def __init__(self, spark: SparkSession, node: ClusterNode, folder: Path) -> None:
        self._args = (spark, node, Lake(folder / "lake"), folder)
        deliveries.run(context_of(*self._args))

    def __call__(self, subscription: str, **arguments: Any) -> tuple[str, dict[Place, str]]:
        """Return the line that sums everything up, and the fault of each listed message."""
        notes = Notes()
        arguments |= {"subscription": subscription}
        delivery_balance.run(context_of(*self._args, notes, **arguments))
        [text] = notes.texts
        return text, {(each["partition"], each["offset"]): each["fault"] for each in notes.rows}


def judge_webhook(books: Books, verify: Verify, hook: str) -> None:
    finals = Counter((row.partition, row.offset) for row in books.rows if row.outcome in FINAL)
    faults = {books.messages[text]: "unrecorded" for text in books.unrecorded()}
    doubles = {place: "double" for place, count in finals.items() if count > 1}
    text, found = verify(hook, doubles_max=len(doubles))
    ages = [
        loss.end - min((at for at in books.lost_at() if loss.has(at, at)), default=loss.end)
        for loss in books.losses
    ]
    print(text, f"(each kill lost {', '.join(f'{age:.2f}' for age in ages)} s)")
    assert found == faults | doubles
    states = Counter(map(books.state, books.messages))
    counts = [f"{states[state]} {state}" for state in FINAL if states[state]]
    assert text.partition(";")[0] == f"{len(books.messages)} messages: {', '.join(counts)}"


def judge_letters(books: Books, letters: Sequence[str]) -> None:
    """A message is in the dead-letter queue if it is dead. A kill may also send it again."""
    again = Counter(letters)
    again.subtract(text for text in books.messages if books.state(text) == "dead")
    assert min(again.values(), default=0) >= 0, "a dead message is not in the queue"
    for text in +again:
        tried = [each.at_ns / 1e9 for each in books.requests if each.body == text]
        assert any(is_lost(books.losses, at) for at in tried), f"{text} is there once too often"


def judge_queue(books: Books, verify: Verify, copied: str, copies: Sequence[str]) -> None:
    text, found = verify(copied, source=TOPIC)
    print(text, f"({len(copies)} copies)")
    assert (text, found) == (f"{len(books.messages)} messages: {len(books.messages)} delivered", {})
    assert {*copies} == books.messages.keys()


def judge_usage(
    books: Books,
    publisher: Publisher,
    facts: Sequence[usage.UsageFacts],
    kills: Sequence[Kill],
    copies: int,
) -> bool:
    """Compare usage with what happened. It may lack what the killed nodes had not written."""
    counted = Counter[str]()
    for row in (row for each in facts for row in each.columns.rows() if row.resource == TOPIC):
        counted[f"{row.op} requests"] += row.requests
        counted[f"{row.op} messages"] += row.messages
    lost = losses(kills, lambda node: [e.written_at_ms for e in facts if e.node == node])
    requests = len(books.requests)
    requests_lost = sum(is_lost(lost, each.at_ns / 1e9) for each in books.requests)
    rows_lost = sum(is_lost(books.losses, each.at_ns / 1e9) for each in books.requests)
    copies_lost = sum(is_lost(lost, begin, end + COPY_SECONDS) for begin, end in publisher.spans)
    print(
        f"requests {requests}: rows {len(books.rows)} (may lack {rows_lost}), usage"
        f" {counted['push:http requests']} (may lack {requests_lost}); copies {copies}: usage"
        f" {counted['push:sqs messages']} (may lack {copies_lost})"
    )
    assert requests - rows_lost <= len(books.rows) <= requests
    assert counted["push:http requests"] <= requests
    assert counted["push:sqs messages"] <= copies
    delivered = sum(row.outcome == "delivered" for row in books.rows)
    assert abs(counted["push:http messages"] - delivered) <= max(rows_lost, requests_lost)
    return (
        counted["push:http requests"] >= requests - requests_lost
        and counted["push:sqs messages"] >= copies - copies_lost
    )
