"""Transactional producers of three clients behind the same few calls, so that one test asks the
same of all of them. Each raises ``Fenced`` where its client says that another has taken over."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka import errors as aio_errors
from confluent_kafka import KafkaException, Producer, TopicPartition
from kafka import KafkaProducer
from kafka import errors as python_errors
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonPartition

SECONDS_MAX = 30.0
FENCED_NAMES = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")

Offsets = Mapping[tuple[str, int], int]


class Fenced(Exception):
    """This producer may not go on."""


class Writer(Protocol):
    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        """Returns when the id is this producer's."""
        ...

    def begin(self) -> None: ...

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Returns when the broker has it."""
        ...

    def send_offsets(self, offsets: Offsets, group: str, reader: Any) -> None:
        """``reader``: the group's member, a consumer of confluent-kafka; not every client can say
        which member it commits for."""
        ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Confluent:
    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._made: Any = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
            }
        )
        self._made.init_transactions(SECONDS_MAX)

    def begin(self) -> None:
        self._made.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        # Refusals need no delivery reports: they fail the transaction, and its commit says so.
        try:
            self._made.produce(topic, value, partition=partition)
            assert self._made.flush(SECONDS_MAX) == 0
        except KafkaException as error:
            raise _of_confluent(error) from error

    def send_offsets(self, offsets: Offsets, group: str, reader: Any) -> None:
        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        metadata = reader.consumer_group_metadata()
        self._made.send_offsets_to_transaction(places, metadata, SECONDS_MAX)

    def commit(self) -> None:
        self._end(self._made.commit_transaction)

    def abort(self) -> None:
        self._end(self._made.abort_transaction)

    def _end(self, end: Any) -> None:
        try:
            end(SECONDS_MAX)
        except KafkaException as error:
            raise _of_confluent(error) from error

    def close(self) -> None:
        self._made = None


def _of_confluent(error: KafkaException) -> Exception:
    return Fenced(str(error)) if error.args[0].name() in FENCED_NAMES else error


class KafkaPython:
    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._made: Any = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        self._made.init_transactions()

    def begin(self) -> None:
        self._made.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        try:
            self._made.send(topic, value, partition=partition).get(SECONDS_MAX)
        except (
            python_errors.ProducerFencedError,
            python_errors.InvalidProducerEpochError,
        ) as error:
            raise Fenced(str(error)) from error

    def send_offsets(self, offsets: Offsets, group: str, reader: Any) -> None:
        places = {
            PythonPartition(*place): OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        self._made.send_offsets_to_transaction(places, group)

    def commit(self) -> None:
        self._end(self._made.commit_transaction)

    def abort(self) -> None:
        self._end(self._made.abort_transaction)

    def _end(self, end: Any) -> None:
        try:
            end()
        except (
            python_errors.ProducerFencedError,
            python_errors.InvalidProducerEpochError,
        ) as error:
            raise Fenced(str(error)) from error

    def close(self) -> None:
        self._made.close(timeout=5)
        self._made = None
        with warnings.catch_warnings():
            # It forgets sockets whose connection was refused, as by a server that was killed.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


class Aio:
    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._runner = asyncio.Runner()
        self._made: Any = None
        self._run(self._start(bootstrap, transactional_id, timeout_ms))

    async def _start(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._made = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        await self._made.start()

    def _run(self, what: Any) -> Any:
        try:
            return self._runner.run(asyncio.wait_for(what, SECONDS_MAX))
        except (aio_errors.ProducerFenced, aio_errors.InvalidProducerEpoch) as error:
            raise Fenced(str(error)) from error

    def begin(self) -> None:
        self._run(self._made.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._run(self._made.send_and_wait(topic, value, partition=partition))

    def send_offsets(self, offsets: Offsets, group: str, reader: Any) -> None:
        places = {AioPartition(*place): offset for place, offset in offsets.items()}
        self._run(self._made.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._run(self._made.commit_transaction())

    def abort(self) -> None:
        self._run(self._made.abort_transaction())

    def close(self) -> None:
        self._run(self._made.stop())
        self._runner.close()


WRITERS: Mapping[str, type[Writer]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aio,
}
