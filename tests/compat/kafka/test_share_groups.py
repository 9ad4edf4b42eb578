"""Share groups with librdkafka's share consumer: records shared out, acknowledged, released, taken
over from members that die, and kept over a restart."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient
from tests.compat.kafka.confluent import SECONDS_MAX, consumer, kinds, producer, send
from tests.compat.kafka.conftest import MakeTopic, create_topic
from tests.harness.server import Server

MEMBER = Path(__file__).with_name("share_member.py")
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


def configure(admin: AdminClient, group: str, **configs: object) -> None:
    resource = kinds.ConfigResource(
        kinds.ResourceType.GROUP,
        group,
        incremental_configs=[
            kinds.ConfigEntry(
                name.replace("_", "."),
                str(value),
                incremental_operation=kinds.AlterConfigOpType.SET,
            )
            for name, value in configs.items()
        ],
    )
    (future,) = admin.incremental_alter_configs([resource], request_timeout=SECONDS_MAX).values()
    future.result(SECONDS_MAX)


@pytest.fixture
def group(admin: AdminClient, name: Callable[..., str]) -> str:
    """A share group that reads its topics from the beginning."""
    made = name("share")
    configure(admin, made, share_auto_offset_reset="earliest")
    return made


@contextmanager
def sharing(bootstrap: str, group: str, topic: str, **settings: object) -> Iterator[Any]:
    given = {key.replace("_", "."): value for key, value in settings.items()}
    config = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 3, **given}
    made: Any = ShareConsumer(config)
    made.subscribe([topic])
    try:
        yield made
    finally:
        made.close()


def explicit(bootstrap: str, group: str, topic: str) -> Any:
    return sharing(bootstrap, group, topic, share_acknowledgement_mode="explicit")


def take(made: Any, seconds: float = SECONDS_MAX) -> list[Any]:
    """The records of the first poll that brings any."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        messages = [message for message in made.poll(0.2) if _is_good(message)]
        if messages:
            return messages
    return []


def _is_good(message: Any) -> bool:
    assert message.error() is None, message.error()
    return True


def seen(messages: list[Any]) -> list[tuple[bytes, int]]:
    """Values, and how often each has been delivered."""
    return [(m.value(), m.delivery_count()) for m in messages if _is_good(m)]


# ── Sharing out ──────────────────────────────────────────────────────────────────────────────
def test_two_members_share_one_partition_and_each_record_is_processed_once(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic()
    sent = [b"%d" % n for n in range(1_000)]
    writer = producer(bootstrap)
    done: Counter[bytes] = Counter()
    counts = [0, 0]
    few = {"max_poll_records": 10}  # of a poll, so that no member takes all
    with (
        sharing(bootstrap, group, topic, **few) as one,
        sharing(bootstrap, group, topic, **few) as two,
    ):
        for member in (one, two):
            member.poll(0.5)
        for start in range(0, 1_000, 100):
            send(writer, topic, sent[start : start + 100])
            deadline = time.monotonic() + SECONDS_MAX
            while done.total() < start + 100:
                for index, member in enumerate((one, two)):
                    for message in member.poll(0.05):
                        assert seen([message]) == [(message.value(), 1)]
                        done[message.value()] += 1
                        counts[index] += 1
                assert time.monotonic() < deadline, f"{done.total()} of {start + 100}"
        for member in (one, two):
            assert all(error is None for error in member.commit_sync(SECONDS_MAX).values())
    assert done == Counter(sent)
    assert min(counts) >= 100, counts
    with sharing(bootstrap, group, topic) as late:
        assert take(late, seconds=2) == [], "nothing is left, and nothing comes again"


def test_a_backlog_of_many_partitions_is_read_once(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(3)
    writer = producer(bootstrap, compression_type="lz4")
    sent = [b"%d" % n for n in range(1_000)]
    for partition in range(3):
        send(writer, topic, sent[partition::3], partition=partition)
    done: Counter[bytes] = Counter()
    with sharing(bootstrap, group, topic) as one, sharing(bootstrap, group, topic) as two:
        deadline = time.monotonic() + SECONDS_MAX
        while done.total() < 1_000:
            for member in (one, two):
                done.update(m.value() for m in member.poll(0.1) if _is_good(m))
            assert time.monotonic() < deadline, f"{done.total()} of 1000"
    assert done == Counter(sent)


def test_two_groups_each_get_everything(
    bootstrap: str, make_topic: MakeTopic, admin: AdminClient, name: Callable[..., str]
) -> None:
    topic = make_topic()
    send(producer(bootstrap), topic, [b"a", b"b"])
    for _ in range(2):
        group = name("share")
        configure(admin, group, share_auto_offset_reset="earliest")
        with sharing(bootstrap, group, topic) as member:
            assert seen(take(member)) == [(b"a", 1), (b"b", 1)]


# ── Acknowledging ────────────────────────────────────────────────────────────────────────────
def test_each_record_is_accepted_released_or_rejected(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic()
    send(producer(bootstrap), topic, [b"accept", b"release", b"reject"])
    with explicit(bootstrap, group, topic) as member:
        messages = take(member)
        assert seen(messages) == [(b"accept", 1), (b"release", 1), (b"reject", 1)]
        for message, ack in zip(messages, (ACCEPT, RELEASE, REJECT), strict=True):
            member.acknowledge(message, ack)
        results = member.commit_sync(SECONDS_MAX)
        assert list(results.values()) == [None]
        (again,) = take(member)
        assert seen([again]) == [(b"release", 2)]
        member.acknowledge(again)
        member.commit_sync(SECONDS_MAX)
        assert take(member, seconds=1) == []


def test_what_a_member_did_not_acknowledge_goes_to_another_when_it_closes(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic()
    send(producer(bootstrap), topic, [b"a", b"b"])
    with explicit(bootstrap, group, topic) as member:
        first, second = take(member)
        member.acknowledge(first)
        member.acknowledge(second, RELEASE)
    with explicit(bootstrap, group, topic) as member:
        (again,) = take(member, seconds=20)  # before the lock would end
        assert seen([again]) == [(b"b", 2)]
        member.acknowledge(again)


def test_a_member_that_dies_loses_its_records_to_another_before_their_locks_end(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic()
    send(producer(bootstrap), topic, [b"a", b"b"])
    command = [sys.executable, str(MEMBER), bootstrap, group, topic]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"got": [["a", 1], ["b", 1]]}
        with explicit(bootstrap, group, topic) as member:
            assert take(member, seconds=1) == [], "they are the other's"
            process.kill()
            process.wait()
            messages: list[Any] = []
            deadline = time.monotonic() + 15  # half of a lock
            while len(messages) < 2:
                got = take(member, seconds=5)
                for message in got:
                    member.acknowledge(message)
                member.commit_sync(SECONDS_MAX)
                messages += got
                assert time.monotonic() < deadline
            assert seen(messages) == [(b"a", 2), (b"b", 2)]


def test_a_lock_that_ends_gives_the_record_to_another(
    bootstrap: str, make_topic: MakeTopic, group: str, admin: AdminClient
) -> None:
    topic = make_topic()
    configure(admin, group, share_record_lock_duration_ms=1_000)
    send(producer(bootstrap), topic, [b"slow"])
    with explicit(bootstrap, group, topic) as slow:
        (message,) = take(slow)
        # For those that come from now on: it has time to acknowledge what it gets.
        configure(admin, group, share_record_lock_duration_ms=30_000)
        with explicit(bootstrap, group, topic) as quick:
            (again,) = take(quick)
            assert seen([again]) == [(b"slow", 2)]
            slow.acknowledge(message)
            (error,) = slow.commit_sync(SECONDS_MAX).values()
            assert isinstance(error, KafkaException)
            assert error.args[0].name() == "INVALID_RECORD_STATE"
            quick.acknowledge(again)
            assert list(quick.commit_sync(SECONDS_MAX).values()) == [None]


# ── Groups ───────────────────────────────────────────────────────────────────────────────────
def test_a_share_group_is_no_other_group(
    bootstrap: str, make_topic: MakeTopic, group: str, admin: AdminClient
) -> None:
    topic = make_topic()
    send(producer(bootstrap), topic, [b"a"])
    with sharing(bootstrap, group, topic) as member:
        assert len(take(member)) == 1
        with consumer(bootstrap, group) as reader:
            reader.subscribe([topic])
            message = reader.poll(SECONDS_MAX)
            assert message is not None
            error = message.error()
            assert error is not None
            assert error.name() == "INCONSISTENT_GROUP_PROTOCOL"
        (future,) = admin.delete_consumer_groups([group], request_timeout=SECONDS_MAX).values()
        with pytest.raises(KafkaException) as refused:
            future.result(SECONDS_MAX)
        assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
    (future,) = admin.delete_consumer_groups([group], request_timeout=SECONDS_MAX).values()
    future.result(SECONDS_MAX)


# ── Restart ──────────────────────────────────────────────────────────────────────────────────
def test_a_restart_keeps_what_is_finished_with_and_members_go_on(own: Server) -> None:
    admin = AdminClient({"bootstrap.servers": own.kafka})
    create_topic(admin, "topic")
    configure(
        admin, "group", share_auto_offset_reset="earliest", share_record_lock_duration_ms=10_000
    )
    writer = producer(own.kafka)
    send(writer, "topic", [b"done", b"held"])
    with explicit(own.kafka, "group", "topic") as member:
        done, held = take(member)
        member.acknowledge(done)
        assert list(member.commit_sync(SECONDS_MAX).values()) == [None]
        own.restart()
        send(writer, "topic", [b"new"])
        member.acknowledge(held)
        member.commit_sync(SECONDS_MAX)
        found: dict[bytes, int] = {}
        deadline = time.monotonic() + SECONDS_MAX
        while b"new" not in found or b"held" not in found:
            for message in take(member, seconds=5):
                found[message.value()] = message.delivery_count()
                member.acknowledge(message)
            member.commit_sync(SECONDS_MAX)
            assert time.monotonic() < deadline, found
        assert found == {b"held": 2, b"new": 1}
