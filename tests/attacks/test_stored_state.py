"""Whatever a client makes the server store, the server can read again.

Random requests of every Kafka API, SQS action and SNS action go to a server that trusts all
callers: names, metadata, subscriptions, offsets, transactional ids, headers and rows that look like
the server's own. They end up in queues, topics, ``__groups``, ``__transactions``, ``__audit`` and
``__usage``.
After a restart the server must have read all of it: no partition is out of service, every
coordinator replies, and the log has no error."""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.frames import Wire
from tests.attacks.fuzzing import Fuzz
from tests.attacks.kit import send, sns_form
from tests.harness.client import Fault, RawClient, Unanswered
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.model.names import INTERNAL_NAMES
from penstock.wire.kafka.generated.create_topics import CreatableTopic
from penstock.wire.kafka.generated.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from penstock.wire.kafka.generated.metadata import MetadataRequestTopic
from penstock.wire.kafka.generated.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

CASES = 10_000
CLIENTS = 8
KAFKA_SHARE = 0.75  # of the cases
SQS_SHARE = 0.15  # the others are SNS
REPLY_SECONDS = 1.0  # a request that waits longer than that is left alone
NAMES = [f"{kind}{number}" for kind in ("queue", "topic", "group") for number in range(3)]
# How many records the requests must have left at least, or the test would prove little.
STORED = {"__groups": 100, "__transactions": 50, "__audit": 100, "__usage": 1}
STORED_IN_QUEUES = 10  # in all of them: each may have been deleted a moment ago
STORING = ("OffsetCommit", "InitProducerId", "SendMessage", "Publish", "Subscribe")
SNS_ARN = re.compile(">(arn:aws:sns:[^<]*)<")
PROBES = 24  # groups and transactional ids: more than enough to meet every coordinator partition


class Client(threading.Thread):
    """Sends its share of the cases. A refused or dropped request is fine; a dead server is not."""

    def __init__(self, server: Server, number: int) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.fuzz = Fuzz(number, NAMES)
        self.kinds: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error

    def _run(self) -> None:
        sqs = RawClient(self.server.port, seconds=10)
        wire = self._connect()
        for number in range(CASES // CLIENTS):
            if number % 100 == 0:
                self._create()
            kind = self.fuzz.random.random()
            if kind >= KAFKA_SHARE + SQS_SHARE:
                self._ask_sns()
            elif kind >= KAFKA_SHARE:
                self._ask_sqs(sqs)
            elif not self._ask_kafka(wire):
                wire.socket.close()
                wire = self._connect()
        wire.socket.close()
        sqs.close()

    def _connect(self) -> Wire:
        wire = Wire(self.server, client_id=self.fuzz.text())
        wire.socket.settimeout(REPLY_SECONDS)
        return wire

    def _ask_kafka(self, wire: Wire) -> bool:
        api, version, body = self.fuzz.kafka()
        try:
            wire.send(wire.frame(api.name, version, body))
            reply = wire.read_frame()
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            return False
        self.kinds[api.name] += 1
        return reply is not None

    def _ask_sqs(self, client: RawClient) -> None:
        name, body = self.fuzz.sqs()
        try:
            client.call(name, body)
        except Fault as fault:
            if fault.status >= 500 and fault.status != 503:
                raise
        except Unanswered:
            return
        self.kinds[name] += 1

    def _ask_sns(self) -> None:
        name, body = self.fuzz.sns()
        status, reply = ask_sns(self.server, name, body)
        assert status < 500 or status == 503, f"{name} {body}: {status} {reply}"
        self.fuzz.arns = (*self.fuzz.arns, *SNS_ARN.findall(reply))[-100:]
        self.kinds[name] += 1

    def _create(self) -> None:
        """What random requests have deleted."""
        client = RawClient(self.server.port)
        for name in NAMES[:3]:
            try:
                client.call("CreateQueue", {"QueueName": name})
            except Fault:
                pass  # with other attributes by now, or just deleted
        client.close()
        for name in NAMES[:3]:
            ask_sns(self.server, "CreateTopic", {"Name": name})
        with Wire(self.server) as wire:
            topics = [
                CreatableTopic(name=name, num_partitions=2, replication_factor=1)
                for name in NAMES[3:6]
            ]
            wire.ask("CreateTopics", 7, topics=topics, timeout_ms=5_000)
            found = wire.ask("Metadata", 12, topics=None)
            self.fuzz.topic_ids = (bytes(16), *(topic.topic_id for topic in found.topics))


@pytest.mark.timeout(240)
def test_everything_that_clients_stored_is_read_again_after_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path / "data", fsync="never", kafka_port=0) as server:
        clients = [Client(server, number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
            if client.failure is not None:
                raise client.failure
        kinds: Counter[str] = sum((client.kinds for client in clients), Counter())
        assert sum(kinds.values()) > CASES * 0.9, kinds
        assert all(kinds[name] for name in STORING), kinds
        check_served(server)
        # Counts are written every few seconds.
        eventually(lambda: stored_count(server, "__usage") > 0, seconds=60, what="usage is stored")
        stored = {name: stored_count(server, name) for name in STORED}
        assert all(stored[name] >= least for name, least in STORED.items()), stored
        in_queues = [stored_count(server, name) for name in NAMES[:3]]
        assert sum(in_queues) >= STORED_IN_QUEUES, in_queues
        subscriptions = listed_subscriptions(server)
        assert subscriptions
        server.restart()
        check_served(server)
        assert listed_subscriptions(server) == subscriptions
        assert server.stop() == 0, server.stderr_tail()
        server.assert_no_traceback()
        for level in ("error", "critical"):
            assert f'"level":"{level}"' not in server.stderr, server.stderr_tail()


def ask_sns(server: Server, action: str, body: dict[str, Any]) -> tuple[int, str]:
    host = server.url.removeprefix("http://")
    form = {"content-type": "application/x-www-form-urlencoded"}
    status, reply, _ = send(host, "POST", "/", sns_form(action, body), form)
    return status, reply.decode()


def listed_subscriptions(server: Server) -> list[str]:
    status, reply = ask_sns(server, "ListSubscriptions", {})
    assert status == 200, reply
    return SNS_ARN.findall(reply)


def stored_count(server: Server, name: str) -> int:
    with Wire(server) as wire:
        [topic] = wire.ask("Metadata", 12, topics=[MetadataRequestTopic(name=name)]).topics
        asked = [
            ListOffsetsPartition(partition_index=part.partition_index, timestamp=-1)
            for part in topic.partitions
        ]
        [found] = wire.ask(
            "ListOffsets", 7, replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)]
        ).topics
        return sum(part.offset for part in found.partitions)


def check_served(server: Server) -> None:
    status, text = server.readyz()
    assert status == 200, text
    assert "out of service" not in text, text
    with Wire(server) as wire:
        found = wire.ask("Metadata", 12, topics=None)
        internal = [topic for topic in found.topics if topic.name in INTERNAL_NAMES]
        assert internal
        for topic in internal:
            assert all(part.error_code == 0 for part in topic.partitions), topic
        for number in range(PROBES):
            place = OffsetCommitRequestPartition(partition_index=0, committed_offset=number)
            reply = wire.ask(
                "OffsetCommit",
                8,
                group_id=f"probe-{number}",
                topics=[OffsetCommitRequestTopic(name=NAMES[3], partitions=[place])],
            )
            assert reply.topics[0].partitions[0].error_code == 0, reply
            began = wire.ask(
                "InitProducerId",
                4,
                transactional_id=f"probe-{number}",
                transaction_timeout_ms=10_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            assert began.error_code == 0, began
