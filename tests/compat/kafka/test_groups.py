"""Consumer groups: who reads what, through joins, leaves, kills and restarts of members, in the
classic protocol with each assignor and in the one of KIP-848."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.attacks.frames import Wire
from tests.compat.kafka.confluent import consumer, kinds, producer, read, send
from tests.compat.kafka.conftest import MakeTopic
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.cursor.groups.settings import CONSUMER_SESSION
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
)

SECONDS_MAX = 40.0
GROUP_RESOURCE = 32
Name = Callable[..., str]

ASSIGNORS = ("range", "roundrobin", "cooperative-sticky")
CLASSIC = ("session.timeout.ms=6000", "heartbeat.interval.ms=300")
PROTOCOLS = {
    **{assignor: (*CLASSIC, f"partition.assignment.strategy={assignor}") for assignor in ASSIGNORS},
    "kip-848": ("group.protocol=consumer",),
}
SESSION_MS = 12_000  # of KIP-848, which servers choose; the default is 45 s


class Member:
    """A process of ``member.py``; its own picture of what it is assigned."""

    def __init__(self, bootstrap: str, group: str, topic: str, *settings: str) -> None:
        program = Path(__file__).parent / "member.py"
        self.assigned: set[int] = set()
        self.got: list[tuple[int, int, str]] = []
        self.errors: list[str] = []
        self._popen = subprocess.Popen(
            [sys.executable, str(program), bootstrap, group, topic, *settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._popen.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._popen.stdout,), daemon=True)
        self._reader.start()

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                told: dict[str, Any] = json.loads(line)
                if "assigned" in told:
                    self.assigned |= set(told["assigned"])
                elif "revoked" in told:
                    self.assigned -= set(told["revoked"])
                elif "got" in told:
                    self.got.append(tuple(told["got"]))
                else:
                    self.errors.append(told["error"])

    def kill(self) -> None:
        self._popen.kill()
        self._end()

    def leave(self) -> None:
        self._popen.terminate()
        self._end()

    def _end(self) -> None:
        self._popen.wait(timeout=SECONDS_MAX)
        self._reader.join(timeout=5)
        self.assigned = set()


StartMember = Callable[..., Member]


def shorten_session(server: Server, group: str) -> None:
    change = AlterableConfig(CONSUMER_SESSION, 0, str(SESSION_MS))
    with Wire(server) as wire:
        resource = AlterConfigsResource(GROUP_RESOURCE, group, [change])
        (done,) = wire.ask("IncrementalAlterConfigs", 1, resources=[resource]).responses
    assert done.error_code == 0, done


@pytest.fixture
def start(bootstrap: str) -> Iterator[StartMember]:
    made: list[Member] = []

    def make(group: str, topic: str, *settings: str) -> Member:
        made.append(Member(bootstrap, group, topic, *settings))
        return made[-1]

    yield make
    for member in made:
        member.kill()


def shared(members: list[Member], partitions: int) -> Callable[[], bool]:
    """Does each partition belong to exactly one member, with nobody idle?"""

    def is_shared() -> bool:
        owned = sorted(number for member in members for number in member.assigned)
        return owned == list(range(partitions)) and all(member.assigned for member in members)

    return is_shared


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_crash_and_leave_and_every_record_is_read(
    kafka_server: Server, make_topic: MakeTopic, name: Name, start: StartMember, protocol: str
) -> None:
    topic, group = make_topic(6), name("group")
    settings = PROTOCOLS[protocol]
    bootstrap = kafka_server.kafka
    if protocol == "kip-848":
        shorten_session(kafka_server, group)
    made = producer(bootstrap)
    sent: set[str] = set()

    def send_some() -> None:
        values = [f"{len(sent) + number}" for number in range(60)]
        for value in values:
            made.produce(topic, value.encode(), partition=int(value) % 6)
        assert made.flush(30) == 0
        sent.update(values)

    def all_read() -> bool:
        return {value for member in members for _, _, value in member.got} == sent

    members = [start(group, topic, *settings)]
    eventually(shared(members[:1], 6), seconds=SECONDS_MAX, what="one member has all")
    send_some()
    eventually(all_read, seconds=SECONDS_MAX, what="read by one")

    members += [start(group, topic, *settings), start(group, topic, *settings)]
    eventually(shared(members, 6), seconds=SECONDS_MAX, what="three members share")
    send_some()
    eventually(all_read, seconds=SECONDS_MAX, what="read by three")

    members[0].kill()
    send_some()
    eventually(shared(members[1:], 6), seconds=70, what="two share after a crash")
    eventually(all_read, seconds=SECONDS_MAX, what="read after a crash")

    members[1].leave()
    eventually(shared(members[2:], 6), seconds=SECONDS_MAX, what="one has all after a leave")
    send_some()
    eventually(all_read, seconds=SECONDS_MAX, what="read after a leave")
    for member in members:
        assert not member.errors, member.errors
    read_twice = [row for member in members for row in member.got]
    assert len(read_twice) - len(set(read_twice)) <= 6, "more than one record a partition twice"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_goes_on_from_what_it_committed(
    bootstrap: str, make_topic: MakeTopic, name: Name, protocol: str
) -> None:
    topic, group = make_topic(), name("group")
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in PROTOCOLS[protocol])
    send(producer(bootstrap), topic, [b"%d" % number for number in range(10)])
    with consumer(bootstrap, group, **settings) as reader:
        reader.subscribe([topic])
        last = read(reader, 4)[-1]
        reader.commit(last, asynchronous=False)
        (place,) = reader.committed([TopicPartition(topic, 0)], timeout=10)
        assert place.offset == 4
    with consumer(bootstrap, group, **settings) as reader:
        reader.subscribe([topic])
        assert [int(message.value()) for message in read(reader, 6)] == list(range(4, 10))


@pytest.mark.parametrize("protocol", ["range", "kip-848"])
def test_two_patterns_find_the_topics_of_both(
    bootstrap: str, make_topic: MakeTopic, name: Name, protocol: str
) -> None:
    topics = [make_topic(2), make_topic(2), make_topic(2)]
    for topic in topics:
        for partition in (0, 1):
            send(producer(bootstrap), topic, [topic.encode()] * 5, partition=partition)
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in PROTOCOLS[protocol])
    with consumer(bootstrap, name("group"), **settings) as reader:
        reader.subscribe([f"^{topics[0][:-1]}[{topics[0][-1]}]$", f"^{topics[1]}"])
        found = sorted(message.topic() for message in read(reader, 20))
        assert found == sorted([topics[0]] * 10 + [topics[1]] * 10)
        assert reader.poll(1) is None, "a third topic was read"


def test_metadata_of_a_commit_comes_back(bootstrap: str, make_topic: MakeTopic, name: Name) -> None:
    topic, group = make_topic(), name("group")
    send(producer(bootstrap), topic, [b"0", b"1"])
    with consumer(bootstrap, group) as reader:
        place = TopicPartition(topic, 0, 1, metadata="half ☃")
        reader.commit(offsets=[place], asynchronous=False)
        (back,) = reader.committed([TopicPartition(topic, 0)], timeout=10)
        assert (back.offset, back.metadata) == (1, "half ☃")


def test_a_group_that_never_committed_has_no_offset(
    bootstrap: str, make_topic: MakeTopic, name: Name
) -> None:
    topic = make_topic()
    with consumer(bootstrap, name("group")) as reader:
        (back,) = reader.committed([TopicPartition(topic, 0)], timeout=10)
        assert back.offset == -1001, "librdkafka's word for none"
        assert back.error is None


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["range", "kip-848"])
def test_a_static_member_comes_back_to_its_partitions(
    make_topic: MakeTopic, name: Name, start: StartMember, protocol: str
) -> None:
    topic, group = make_topic(4), name("group")
    settings = PROTOCOLS[protocol]
    if protocol == "range":
        settings = (*settings, "session.timeout.ms=30000")  # it is back before it is given up
    first = start(group, topic, *settings, "group.instance.id=one")
    second = start(group, topic, *settings, "group.instance.id=two")
    eventually(shared([first, second], 4), seconds=SECONDS_MAX, what="two share")
    mine, others = set(first.assigned), set(second.assigned)
    if protocol == "range":
        first.kill()
    else:
        first.leave()  # of a crash the newer protocol is sure only when the session is over
    again = start(group, topic, *settings, "group.instance.id=one")
    eventually(lambda: again.assigned == mine, seconds=SECONDS_MAX, what="the same partitions")
    assert second.assigned == others, "the other member was disturbed"


@pytest.mark.slow
def test_a_group_sees_partitions_added_to_its_topic(
    bootstrap: str, admin: AdminClient, make_topic: MakeTopic, name: Name, start: StartMember
) -> None:
    topic, group = make_topic(1), name("group")
    member = start(group, topic, *PROTOCOLS["range"])
    eventually(shared([member], 1), seconds=SECONDS_MAX, what="one partition")
    (future,) = admin.create_partitions([kinds.NewPartitions(topic, 3)]).values()
    future.result(SECONDS_MAX)
    eventually(shared([member], 3), seconds=SECONDS_MAX, what="three partitions")


def test_a_commit_from_outside_a_living_group_is_refused(
    bootstrap: str, make_topic: MakeTopic, name: Name
) -> None:
    topic, group = make_topic(), name("group")
    send(producer(bootstrap), topic, [b"0"])
    with consumer(bootstrap, group) as reader:
        reader.subscribe([topic])
        read(reader, 1)
        with consumer(bootstrap, group) as stranger, pytest.raises(KafkaException) as refused:
            stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert refused.value.args[0].name() in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
