"""Transactions through three clients: a consumer of committed records sees all of one or nothing,
through aborts, fencing, time-outs and kills of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from tests.compat.kafka.confluent import consumer, producer, read, read_all, send
from tests.compat.kafka.conftest import MakeTopic, create_topic
from tests.compat.kafka.writers import WRITERS, Confluent, Fenced, Writer
from tests.harness.patience import eventually
from tests.harness.server import Server

SECONDS_MAX = 30.0
Name = Callable[..., str]
MakeWriter = Callable[..., Writer]

clients = pytest.mark.parametrize("client", list(WRITERS))


@pytest.fixture
def writer() -> Iterator[MakeWriter]:
    made: list[Writer] = []

    def make(client: str, bootstrap: str, transactional_id: str, **settings: Any) -> Writer:
        made.append(WRITERS[client](bootstrap, transactional_id, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def values(bootstrap: str, topic: str, partitions: int = 1, *, is_committed: bool = True) -> Any:
    level = "read_committed" if is_committed else "read_uncommitted"
    # It knows that a partition has ended by a fetch that brings nothing.
    messages = read_all(bootstrap, topic, partitions, isolation_level=level, fetch_wait_max_ms=10)
    return [message.value() for message in messages]


def shows(bootstrap: str, topic: str, wanted: list[bytes], partitions: int = 1) -> None:
    """A commit is answered once it is decided; partitions show it a moment later."""

    def is_shown() -> bool:
        return sorted(values(bootstrap, topic, partitions)) == sorted(wanted)

    eventually(is_shown, seconds=SECONDS_MAX, what=f"{topic} shows {wanted}")


@clients
def test_a_commit_shows_everything_and_an_abort_nothing(
    bootstrap: str, make_topic: MakeTopic, name: Name, writer: MakeWriter, client: str
) -> None:
    topic = make_topic(2)
    made = writer(client, bootstrap, name("id"))
    for number, is_commit in enumerate((True, False, True)):
        made.begin()
        for partition in (0, 1):
            made.send(topic, b"%d" % number, partition)
        seen = [b"0", b"0"] if number else []
        assert sorted(values(bootstrap, topic, 2)) == seen
        if is_commit:
            made.commit()
        else:
            made.abort()
        shows(bootstrap, topic, [b"0", b"0", b"2", b"2"] if number == 2 else [b"0", b"0"], 2)
    assert len(values(bootstrap, topic, 2, is_committed=False)) == 6


@clients
def test_an_open_transaction_holds_back_what_others_wrote_behind_it(
    bootstrap: str, make_topic: MakeTopic, name: Name, writer: MakeWriter, client: str
) -> None:
    topic = make_topic()
    made = writer(client, bootstrap, name("id"))
    made.begin()
    made.send(topic, b"in a transaction")
    send(producer(bootstrap), topic, [b"plain"])
    assert values(bootstrap, topic) == []
    assert values(bootstrap, topic, is_committed=False) == [b"in a transaction", b"plain"]
    made.commit()
    shows(bootstrap, topic, [b"in a transaction", b"plain"])


@clients
def test_a_zombie_is_fenced(
    bootstrap: str, make_topic: MakeTopic, name: Name, writer: MakeWriter, client: str
) -> None:
    topic, transactional_id = make_topic(), name("id")
    zombie = writer(client, bootstrap, transactional_id)
    zombie.begin()
    zombie.send(topic, b"lost")
    successor = writer(client, bootstrap, transactional_id)

    def go_on() -> None:
        zombie.send(topic, b"late")
        zombie.commit()

    with pytest.raises(Fenced):
        go_on()
    successor.begin()
    successor.send(topic, b"kept")
    successor.commit()
    shows(bootstrap, topic, [b"kept"])


@clients
def test_what_takes_too_long_is_aborted(
    bootstrap: str, make_topic: MakeTopic, name: Name, writer: MakeWriter, client: str
) -> None:
    topic = make_topic()
    made = writer(client, bootstrap, name("id"), timeout_ms=5_000)
    made.begin()
    made.send(topic, b"slow")
    send(producer(bootstrap), topic, [b"plain"])
    shows(bootstrap, topic, [b"plain"])
    with pytest.raises((Fenced, KafkaException)):
        made.commit()
    assert values(bootstrap, topic) == [b"plain"]


@clients
def test_read_process_write_counts_every_record_once(
    bootstrap: str, make_topic: MakeTopic, name: Name, writer: MakeWriter, client: str
) -> None:
    """Every third attempt is aborted and done again from the offsets that were committed."""
    source, target, group = make_topic(2), make_topic(2), name("group")
    for partition in (0, 1):
        send(producer(bootstrap), source, [b"%d" % n for n in range(40)], partition=partition)
    made = writer(client, bootstrap, name("id"))
    attempts = 0
    with consumer(bootstrap, group, isolation_level="read_committed") as reader:
        reader.subscribe([source])
        done = 0
        while done < 80:
            messages = read(reader, min(7, 80 - done))
            attempts += 1
            made.begin()
            for message in messages:
                made.send(target, message.value(), message.partition())
            made.send_offsets(
                {(source, message.partition()): message.offset() + 1 for message in messages},
                group,
                reader,
            )
            if attempts % 3 == 0:
                made.abort()
                rewind(reader)
            else:
                made.commit()
                done += len(messages)
    wanted = [b"%d" % n for n in range(40)] * 2
    shows(bootstrap, target, wanted, 2)
    with consumer(bootstrap, group) as reader:
        reader.subscribe([source])
        places = eventually(
            lambda: reader.poll(0.1) is None and reader.assignment(),
            seconds=SECONDS_MAX,
            what="an assignment",
        )
        assert sum(place.offset for place in reader.committed(places, SECONDS_MAX)) == 80


def rewind(reader: Any) -> None:
    """Back to what is committed, or to the beginning."""
    for place in reader.committed(reader.assignment(), SECONDS_MAX):
        place.offset = max(place.offset, 0)
        reader.seek(place)


# ── Kills ────────────────────────────────────────────────────────────────────────────────────


@clients
def test_an_open_transaction_outlives_a_kill(own: Server, writer: MakeWriter, client: str) -> None:
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "topic", 2)
    made = writer(client, own.kafka, "id")
    made.begin()
    made.send("topic", b"before", 0)
    own.kill()
    own.start()
    made.send("topic", b"after", 1)
    assert values(own.kafka, "topic", 2) == []
    made.commit()
    shows(own.kafka, "topic", [b"before", b"after"], 2)


@clients
def test_what_a_killed_server_left_open_is_aborted_for_the_next_producer(
    own: Server, writer: MakeWriter, client: str
) -> None:
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "topic")
    old = writer("confluent-kafka", own.kafka, "id")
    old.begin()
    old.send("topic", b"lost")
    own.kill()
    own.start()
    made = writer(client, own.kafka, "id")
    made.begin()
    made.send("topic", b"kept")
    made.commit()
    shows(own.kafka, "topic", [b"kept"])


@pytest.mark.slow
def test_kills_at_any_moment_tear_no_transaction(own: Server) -> None:
    """Each transaction writes the same value to two partitions. Whatever is killed in between: both
    show it or none does, those that were answered are there, those that were aborted are not."""
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "topic", 2)
    committed: set[bytes] = set()
    aborted: set[bytes] = set()
    unknown: set[bytes] = set()
    ending = threading.Event()

    def write(number: int) -> None:
        made = Confluent(own.kafka, f"id {number}")
        count = 0
        while not ending.is_set():
            value = b"%d-%d" % (number, count)
            count += 1
            unknown.add(value)
            made.begin()
            try:
                for partition in (0, 1):
                    made.send("topic", value, partition)
                if count % 3:
                    made.commit()
                    committed.add(value)
                else:
                    made.abort()
                    aborted.add(value)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                made.abort()
                aborted.add(value)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    kills = 0
    try:
        while kills < 4:
            before = len(committed)
            eventually(
                lambda: len(committed) > before + 20,  # noqa: B023
                seconds=60,
                what="transactions go on after a kill",
            )
            own.kill()
            own.start()
            kills += 1
    finally:
        ending.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert unknown == committed | aborted, "every transaction was answered in the end"
    shows(own.kafka, "topic", [*committed, *committed], 2)
    seen: dict[int, list[bytes]] = {0: [], 1: []}
    for message in read_all(own.kafka, "topic", 2, isolation_level="read_committed"):
        seen[message.partition()].append(message.value())
    assert sorted(seen[0]) == sorted(seen[1]) == sorted(committed)


# ── What tools see ───────────────────────────────────────────────────────────────────────────


def test_transactions_can_be_looked_at(
    bootstrap: str, make_topic: MakeTopic, name: Name, writer: MakeWriter
) -> None:
    topic, transactional_id = make_topic(), name("id")
    made = writer("confluent-kafka", bootstrap, transactional_id)
    made.begin()
    made.send(topic, b"x")
    tool = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        described = str(tool.describe_transactions([transactional_id]))
        assert "Ongoing" in described
        assert topic in described
        listed = str(tool.list_transactions(state_filters=["Ongoing"]))
        assert transactional_id in listed
        made.commit()
        eventually(
            lambda: "CompleteCommit" in str(tool.describe_transactions([transactional_id])),
            seconds=SECONDS_MAX,
            what="the transaction is completed",
        )
    finally:
        tool.close()
