"""kafka-python keeps fetch sessions: many partitions named once, and a server that forgets them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec, KafkaAdminClient
from kafka.consumer import fetcher
from tests.compat.kafka.conftest import MakeTopic, create_topic
from tests.harness.server import Server

SECONDS_MAX = 60.0
PARTITIONS = 120


@contextmanager
def closing(made: Any) -> Iterator[Any]:
    try:
        yield made
    finally:
        made.close()


def reader_of(bootstrap: str, topic: str, partitions: int) -> Any:
    reader = KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=200,
        reconnect_backoff_max_ms=500,
    )
    reader.assign([TopicPartition(topic, index) for index in range(partitions)])
    return reader


def read(reader: Any, count: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        for place, records in reader.poll(timeout_ms=200).items():
            found += [(place.partition, record.value) for record in records]
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
    return found


def send(writer: Any, topic: str, values: dict[int, bytes]) -> None:
    for index, value in values.items():
        writer.send(topic, partition=index, value=value)
    writer.flush(SECONDS_MAX)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Error, session and number of partitions of every fetch answer that the client gets."""
    answers: list[tuple[int, int, int]] = []
    handle = fetcher.FetchSessionHandler.handle_response

    def note(self: Any, response: Any) -> Any:
        count = sum(len(topic.partitions) for topic in response.responses)
        answers.append((response.error_code, response.session_id, count))
        return handle(self, response)

    monkeypatch.setattr(fetcher.FetchSessionHandler, "handle_response", note)
    return answers


def test_a_session_over_many_partitions_answers_what_is_new(
    bootstrap: str, make_topic: MakeTopic, seen: list[tuple[int, int, int]]
) -> None:
    topic = make_topic(PARTITIONS)
    with (
        closing(KafkaProducer(bootstrap_servers=bootstrap)) as writer,
        closing(reader_of(bootstrap, topic, PARTITIONS)) as reader,
    ):
        send(writer, topic, dict.fromkeys(range(PARTITIONS), b"first"))
        got = read(reader, PARTITIONS)
        assert sorted(index for index, _ in got) == list(range(PARTITIONS))
        for number in range(20):
            index = number * 37 % PARTITIONS
            send(writer, topic, {index: b"%d" % number})
            assert read(reader, 1) == [(index, b"%d" % number)]
    assert {code for code, _, _ in seen} == {0}
    assert seen[0][2] == PARTITIONS, "the first answer names all"
    (session_id,) = {session for _, session, _ in seen}
    assert session_id > 0
    assert [count for _, _, count in seen].count(PARTITIONS) == 1
    assert min(count for _, _, count in seen) <= 1


def test_a_reader_recovers_from_a_server_that_forgot_its_session(
    own: Server, seen: list[tuple[int, int, int]]
) -> None:
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "many", PARTITIONS)
    with (
        closing(KafkaProducer(bootstrap_servers=own.kafka)) as writer,
        closing(reader_of(own.kafka, "many", PARTITIONS)) as reader,
    ):
        send(writer, "many", dict.fromkeys(range(PARTITIONS), b"before"))
        assert {value for _, value in read(reader, PARTITIONS)} == {b"before"}
        before = {session for _, session, _ in seen if session}
        own.restart()
        send(writer, "many", dict.fromkeys(range(PARTITIONS), b"after"))
        after = read(reader, PARTITIONS)
        assert sorted(after) == [(index, b"after") for index in range(PARTITIONS)]
        assert {session for _, session, _ in seen if session} - before, "a session of its own"


def test_a_reader_recovers_from_the_loss_of_its_session_alone(
    bootstrap: str, make_topic: MakeTopic, seen: list[tuple[int, int, int]]
) -> None:
    """As after a restart that the client did not notice: the next fetch is answered with 70."""
    topic = make_topic(3)
    with (
        closing(KafkaProducer(bootstrap_servers=bootstrap)) as writer,
        closing(reader_of(bootstrap, topic, 3)) as reader,
    ):
        send(writer, topic, {0: b"a"})
        assert read(reader, 1) == [(0, b"a")]
        handlers = reader._fetcher._session_handlers
        for handler in handlers.values():
            known = handler.next_metadata
            handler.next_metadata = type(known)(known.session_id ^ 1, max(known.epoch, 1))
        send(writer, topic, {2: b"b"})
        assert read(reader, 1) == [(2, b"b")]
    codes = {code for code, _, _ in seen}
    assert 70 in codes
    assert codes <= {0, 70, 71}


def test_a_session_survives_a_topic_made_anew(
    bootstrap: str, admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(2), make_topic(1)
    with (
        closing(KafkaProducer(bootstrap_servers=bootstrap)) as writer,
        closing(reader_of(bootstrap, topic, 2)) as reader,
    ):
        reader.assign([*reader.assignment(), TopicPartition(other, 0)])
        send(writer, topic, {0: b"old"})
        assert read(reader, 1) == [(0, b"old")]
        for future in admin.delete_topics([topic]).values():
            future.result(SECONDS_MAX)
        create_topic(admin, topic, 2)
        send(writer, other, {0: b"beside"})
        assert read(reader, 1) == [(0, b"beside")]
        reader.seek_to_beginning(TopicPartition(topic, 0), TopicPartition(topic, 1))
        send(writer, topic, {1: b"new"})
        assert read(reader, 1) == [(1, b"new")]


def test_a_hanging_transaction_is_found_and_aborted(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    place = TopicPartition(topic, 0)
    with (
        closing(KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)) as writer,
        closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as tool,
    ):
        writer.init_transactions()
        writer.begin_transaction()
        writer.send(topic, value=b"held").get(SECONDS_MAX)
        (state,) = tool.describe_producers([place])[place].active_producers
        assert (state.last_sequence, state.current_transaction_start_offset) == (0, 0)
        tool.abort_transaction(AbortTransactionSpec(place, state.producer_id, state.producer_epoch))
        (state,) = tool.describe_producers([place])[place].active_producers
        assert state.current_transaction_start_offset == -1
        writer.abort_transaction()
