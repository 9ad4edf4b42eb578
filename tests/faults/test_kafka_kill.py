"""kill -9 in a loop under Kafka clients: an idempotent producer and a consumer group go on by
themselves, and afterwards nothing is lost, doubled, out of order or committed in vain.

Longer runs: PENSTOCK_FAULTS_KILLS=200."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from tests.compat.kafka.confluent import read_all
from tests.compat.kafka.conftest import create_topic
from tests.harness.full import FULL
from tests.harness.kafka_load import Members, Numbered, judge
from tests.harness.patience import eventually
from tests.harness.server import Server, stable_port

KILLS = int(os.environ.get("PENSTOCK_FAULTS_KILLS", "6" if FULL else "3"))
PARTITIONS = 3
PROGRESS_SECONDS_MAX = 40.0
TOPIC, GROUP = "numbers", "readers"


def admin_of(server: Server) -> Any:
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": server.kafka,
        "log_level": 0,
    }
    return confluent_kafka.admin.AdminClient(settings)


def offsets_of(server: Server) -> dict[int, int]:
    """As the server has them. A client of its own each time: one that saw the last server die may
    be waiting before it tries again."""
    admin = admin_of(server)
    asked = [ConsumerGroupTopicPartitions(GROUP)]
    (future,) = admin.list_consumer_group_offsets(asked, request_timeout=20).values()
    places = future.result(30).topic_partitions
    return {place.partition: place.offset for place in places if place.offset >= 0}


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * KILLS)
def test_no_promise_to_kafka_clients_is_broken_by_kills(tmp_path: Path, seed: str) -> None:
    chance = Random(f"kafka-kills-{seed}")
    server = Server(tmp_path / "data", port=stable_port(), kafka_port=stable_port())
    with server:
        create_topic(admin_of(server), TOPIC, PARTITIONS)
        sender = Numbered(server.kafka, TOPIC, PARTITIONS)
        members = Members(server.kafka, GROUP, TOPIC, count=2)
        members.start()
        sender.start()
        kills_under_load = 0
        for _ in range(KILLS):
            wanted = sender.count + chance.randrange(200, 2_000)
            read_before = members.deliveries
            eventually(
                lambda wanted=wanted, before=read_before: (  # type: ignore[misc]
                    sender.count >= wanted and members.deliveries > before
                ),
                seconds=PROGRESS_SECONDS_MAX,
                what=f"{wanted} records answered and some read\n{server.stderr_tail(10)}",
            )
            assert not sender.errors, sender.errors[:5]
            kills_under_load += sender.in_flight > 0
            answered = dict(members.committed)
            server.kill()
            server.start()
            kept = offsets_of(server)
            gone = {p: (kept.get(p), k) for p, k in answered.items() if kept.get(p, 0) < k}
            assert not gone, f"BACK: commits answered before the kill are gone: {gone}"
        sender.end(60)
        assert not sender.errors, sender.errors[:5]
        eventually(
            lambda: sum(map(len, members.read.values())) >= sum(sender.sent),
            seconds=60,
            what="everything read by the group",
        )
        members.end(30)
        log: dict[int, list[int]] = {}
        for message in read_all(server.kafka, TOPIC, PARTITIONS):
            log.setdefault(message.partition(), []).append(int(message.value()))
        verdict = judge(sender, members, log, offsets_of(server))
        print(
            f"sent {sum(sender.sent)}, deliveries {members.deliveries}, commits {members.commits}"
        )
        assert server.stop() == 0, server.stderr_tail()
        server.assert_no_traceback()
    verdict.assert_clean()
    # A clean verdict counts only for a run that was hit while it worked.
    assert kills_under_load >= KILLS - 1
    assert members.commits > KILLS
