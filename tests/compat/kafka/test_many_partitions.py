"""Thousands of partitions on one server: each is written to by a real client and read by a group,
and what they cost in memory, files and start time stays within bounds."""

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.compat.kafka.confluent import kinds
from tests.compat.kafka.conftest import SECONDS_MAX, create_topic
from tests.harness.server import Server, penstock_command, stable_port

from penstock.node.process.resources import FILES_PER_PARTITION, partitions_max

TOPICS = ("many-a", "many-b", "many-c", "many-d")
IDLE_BYTES_MAX = 100_000_000
THOUSAND_BYTES_MAX = 250_000_000
CONSUME_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 120.0  # each partition is synced; measured: 10 s for two thousand
READY_SECONDS_MAX = 60.0  # measured: 1.1 s for a thousand, alone

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "data", fsync="never", port=stable_port(), kafka_port=stable_port())
    with made as running:
        yield running
        assert running.stop(seconds=STOP_SECONDS_MAX) == 0, running.stderr_tail()
        running.assert_no_traceback()


def per_topic() -> int:
    """512, or as many as this machine's limit of open files is good for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 512 if hard == resource.RLIM_INFINITY else (partitions_max(hard) - 64) // len(TOPICS)
    if most < 64:
        pytest.skip(f"{hard} open files are allowed here, which is too few for many partitions")
    return min(512, most)


def produce(server: Server, topic: str, count: int) -> None:
    made: Any = Producer({"bootstrap.servers": server.kafka, "linger.ms": 20})
    for number in range(count):
        made.produce(topic, b"%d" % number, partition=number)
    assert made.flush(SECONDS_MAX) == 0


class Member:
    """Of one group. What it got is counted from its last assignment on: what it had read before
    that and not committed is read again, by whoever has the partition now."""

    def __init__(self, server: Server) -> None:
        self.got: set[tuple[str, int]] = set()
        self.assigned = 0
        self.reader: Any = Consumer(
            {
                "bootstrap.servers": server.kafka,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "range",
            }
        )
        self.reader.subscribe(list(TOPICS), on_assign=self._assign)

    def _assign(self, _reader: Any, places: list[TopicPartition]) -> None:
        self.got.clear()
        self.assigned = len(places)

    def read(self) -> None:
        for record in self.reader.consume(1_000, 0.2):
            assert record.error() is None
            self.got.add((record.topic(), record.partition()))

    def close(self) -> None:
        self.reader.commit(asynchronous=False)
        self.reader.close()


def consume(members: list[Member], partitions: int, count: int) -> None:
    """Until they have all partitions between them, and have read so many records."""
    give_up_at = time.monotonic() + CONSUME_SECONDS_MAX
    while True:
        for each in members:
            each.read()
        assigned = [each.assigned for each in members]
        read = [len(each.got) for each in members]
        if all(assigned) and sum(assigned) == partitions and sum(read) == count:
            return
        assert time.monotonic() < give_up_at, (assigned, read)


def end_offsets(server: Server, count: int) -> list[int]:
    admin: Any = AdminClient({"bootstrap.servers": server.kafka})
    latest = kinds.OffsetSpec.latest()
    wanted = {TopicPartition(topic, n): latest for topic in TOPICS for n in range(count)}
    found = admin.list_offsets(wanted, request_timeout=SECONDS_MAX)
    return [future.result(SECONDS_MAX).offset for future in found.values()]


def open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def seconds(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def test_thousands_of_partitions_are_written_read_and_opened_again(server: Server) -> None:
    count = per_topic()
    total = count * len(TOPICS)
    idle_bytes, idle_files = server.rss_bytes(), open_files(server)
    assert idle_bytes < IDLE_BYTES_MAX
    admin = AdminClient({"bootstrap.servers": server.kafka})
    for topic in TOPICS:
        create_topic(admin, topic, count)
    for topic in TOPICS[:2]:
        produce(server, topic, count)
    assert server.rss_bytes() < THOUSAND_BYTES_MAX, "a thousand partitions"
    for topic in TOPICS[2:]:
        produce(server, topic, count)
    held = open_files(server) - idle_files
    assert total * FILES_PER_PARTITION <= held < total * FILES_PER_PARTITION + 100

    members = [Member(server), Member(server)]
    consume(members, total, total)
    for each in members:
        each.close()
    print(
        f"{total} partitions: {(server.rss_bytes() - idle_bytes) / total:,.0f} bytes and"
        f" {held / total:.1f} files each"
    )
    assert server.rss_bytes() < THOUSAND_BYTES_MAX

    assert server.stop(seconds=STOP_SECONDS_MAX) == 0
    ready_s = seconds(server.start)
    print(f"ready after {ready_s:.1f} s, {server.rss_bytes() / 1e6:.0f} MB")
    assert ready_s < READY_SECONDS_MAX
    assert server.rss_bytes() < THOUSAND_BYTES_MAX
    assert end_offsets(server, count) == [1] * total
    again = Member(server)
    produce(server, TOPICS[0], count)
    consume([again], total, count)
    assert {topic for topic, _ in again.got} == {TOPICS[0]}, "committed: only what is new"
    again.close()


def test_memory_and_files_come_back_when_topics_are_deleted(server: Server) -> None:
    """Eight rounds of 32 MiB in four partitions: without an end to it they would keep 128 MiB."""
    admin = AdminClient({"bootstrap.servers": server.kafka})
    body = bytes(4_096)
    files = open_files(server)

    def fill(topic: str) -> None:
        create_topic(admin, topic, 4)
        made: Any = Producer({"bootstrap.servers": server.kafka, "linger.ms": 20})
        for number in range(8_192):
            made.produce(topic, body, partition=number % 4)
        assert made.flush(SECONDS_MAX) == 0

    for number in range(8):
        fill(f"gone-{number}")
        for future in admin.delete_topics([f"gone-{number}"]).values():
            future.result(SECONDS_MAX)
    give_up_at = time.monotonic() + SECONDS_MAX
    # The broker lets go of a deleted topic behind the answer, and of its memory a little later.
    # Two topics of the node itself, four files each, come with what is noted of the first requests.
    while server.rss_bytes() > IDLE_BYTES_MAX or open_files(server) > files + 4 + 8:
        assert time.monotonic() < give_up_at, (server.rss_bytes(), open_files(server) - files)
        time.sleep(0.2)


def test_a_low_limit_of_open_files_is_told_and_refused(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    create_topic(admin, "before", 100)
    produce(server, "before", 100)
    assert server.stop(seconds=STOP_SECONDS_MAX) == 0
    command = server.command()
    assert command[0] == penstock_command()
    low = subprocess.run(
        ["prlimit", "--nofile=300:300", *command],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert low.returncode == 1
    _, why, do = low.stderr.splitlines()
    assert "the limit of 300 open files is too low" in why
    assert "ulimit -n" in do
    server.command = lambda: ["prlimit", "--nofile=1024:1024", *command]  # type: ignore[method-assign]
    server.start()
    with pytest.raises(KafkaException, match="limit of open files"):
        create_topic(AdminClient({"bootstrap.servers": server.kafka}), "behind", 150)
    create_topic(AdminClient({"bootstrap.servers": server.kafka}), "within", 10)
    produce(server, "within", 10)
