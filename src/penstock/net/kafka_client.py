"""A blocking Kafka client, for those who have a thread of their own: commands, Spark's workers.

One socket per node, one request at a time. Requests and answers are the values of ``wire/kafka``;
which version of an API is spoken follows from what each node says it serves. Leaders and
coordinators are asked where the cluster names them, so that one node and many look the same.

Records pass through closed. ``fetch`` hands back what the log holds, as slices of the buffer that
the answer was read into; ``produce`` takes whole batches. Making and opening batches is
``record/``'s, printing is the command's, and what a consumer does with an offset its own.

A client belongs to one thread of one process, and nothing is shared between two: after a fork, or
in another process, make one from the same addresses and the same ``Security``.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.net.kafka_client_errors import (
    STALE_LEADER_CODES,
    HungUp,
    KafkaRefused,
    KafkaTrouble,
    NotKafka,
    TimedOut,
    Unreachable,
)
from penstock.net.kafka_client_node import Dialling, KafkaNode
from penstock.net.kafka_client_values import (
    Fetched,
    Place,
    by_topic,
    fetched_of,
    parse_addresses,
)
from penstock.net.kafka_login import Security, SecurityInvalid, security_from
from penstock.wire.kafka.apis import FETCH, PRODUCE
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch_request import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "Fetched",
    "HungUp",
    "KafkaClient",
    "KafkaRefused",
    "KafkaTrouble",
    "NotKafka",
    "Place",
    "Security",
    "SecurityInvalid",
    "TimedOut",
    "Unreachable",
    "by_topic",
    "parse_addresses",
    "security_from",
]

EARLIEST: Final = -2
LATEST: Final = -1
GROUP: Final = 0
TRANSACTION: Final = 1

ACKS_ALL: Final = -1

_LIST_OFFSETS, _METADATA, _FIND_COORDINATOR, _INIT_PRODUCER_ID = 2, 3, 10, 22
_BY_NAME_MAX: Final = 12  # newer fetches and produces name topics by their ids
_COORDINATOR_ALONE_MAX: Final = 3  # newer versions ask for several at once
_PAUSE_S, _PAUSE_S_MAX = 0.1, 2.0
_PARTITION_BYTES: Final = 1_048_576
_ANSWER_BYTES: Final = 8 * 1_048_576
_ANYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104

T = TypeVar("T")


class KafkaClient:
    """The cluster behind some addresses. All calls raise KafkaTrouble."""

    def __init__(
        self,
        addresses: str,
        *,
        security: Security | None = None,
        timeout_s: float = 30.0,
        client_id: str = "penstock",
    ) -> None:
        """``timeout_s``: for one answer, and for all attempts of a call that is tried again. Raises
        ValueError for an address and SecurityInvalid for files that cannot be used."""
        security = security or Security()
        tls = security.tls_context() if security.is_tls else None
        self._dialling = Dialling(security, tls, timeout_s, client_id)
        self._first = [
            KafkaNode(host, port, self._dialling) for host, port in parse_addresses(addresses)
        ]
        self._nodes: dict[int, KafkaNode] = {}
        self._leaders: dict[Place, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def timeout_ms(self) -> int:
        return int(self._dialling.timeout_s * 1_000)

    def close(self) -> None:
        for node in (*self._first, *self._nodes.values()):
            node.close()

    # ── Any request ──────────────────────────────────────────────────────────────────────────

    def call(
        self,
        key: int,
        request: Any,
        *,
        node: int | None = None,
        wait_s: float = 0.0,
        version_max: int | None = None,
    ) -> Any:
        """The decoded answer of any node, or of the one named. ``version_max`` is for requests
        that newer versions word differently. Sent once, whatever becomes of it."""
        at = self._any() if node is None else self._nodes[node]
        return at.call(key, request, wait_s=wait_s, version_max=version_max)

    def _any(self) -> KafkaNode:
        """The first of our addresses that answers; then it stays the first."""
        for number, node in enumerate(self._first):
            try:
                node.open()
            except Unreachable:
                if number + 1 == len(self._first):
                    raise
            else:
                if number:
                    self._first.insert(0, self._first.pop(number))
                return node
        raise AssertionError("there is at least one address")

    def retried(self, ask: Callable[[], T], *, is_repeatable: bool = True) -> T:
        """The answer of ``ask`` once the trouble has passed, within the time of one answer. What is
        not repeatable is not asked again after an answer was lost. A cluster that was never reached
        is not waited for: more often than not its address is wrong."""
        ends_at = time.monotonic() + self._dialling.timeout_s
        pause_s = _PAUSE_S
        while True:
            try:
                return ask()
            except KafkaTrouble as trouble:
                is_answered = isinstance(trouble, KafkaRefused)
                may_repeat = is_answered or (is_repeatable and bool(self._nodes))
                if not (trouble.is_passing and may_repeat) or time.monotonic() + pause_s > ends_at:
                    raise
                self._leaders.clear()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def at_leaders(
        self,
        key: int,
        places: Sequence[Place],
        request: Callable[[Sequence[Place]], Any],
        *,
        wait_s: float = 0.0,
        version_max: int | None = None,
    ) -> list[Any]:
        """The same request to each node, about the partitions that it leads."""
        return [
            self.call(key, request(mine), node=node, wait_s=wait_s, version_max=version_max)
            for node, mine in self._by_leader(places).items()
        ]

    # ── The cluster ──────────────────────────────────────────────────────────────────────────

    def metadata(self, topics: Iterable[str] | None = None, *, may_create: bool = False) -> Any:
        """Of these topics or of all. Also learns who leads which partition. ``may_create``: the
        server creates topics that do not exist, if its settings and the user's rights allow it."""
        from penstock.wire.kafka.generated.metadata import MetadataRequest, MetadataRequestTopic

        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=may_create)
        reply = self.call(_METADATA, request)
        for node in reply.brokers:
            self._know(node.node_id, node.host, node.port)
        for topic in reply.topics:
            for part in topic.partitions:
                self._leaders[Place(topic.name, part.partition_index)] = part.leader_id
        return reply

    def topic(self, name: str, *, may_create: bool = False) -> Any:
        """One topic as metadata shows it."""
        (topic,) = self.metadata([name], may_create=may_create).topics
        if topic.error_code:
            raise KafkaRefused(topic.error_code, subject=name)
        return topic

    def places(self, topic: str) -> list[Place]:
        found = self.topic(topic)
        return sorted(Place(topic, part.partition_index) for part in found.partitions)

    def nodes(self) -> list[int]:
        return sorted(node.node_id for node in self.metadata(()).brokers)

    def coordinator(self, name: str, *, kind: int = GROUP) -> int:
        """The node that looks after a group, or a TRANSACTION's id."""
        from penstock.wire.kafka.generated.find_coordinator import FindCoordinatorRequest

        request = FindCoordinatorRequest(key=name, key_type=kind)

        def ask() -> int:
            reply = self.call(_FIND_COORDINATOR, request, version_max=_COORDINATOR_ALONE_MAX)
            if reply.error_code:
                raise KafkaRefused(reply.error_code, reply.error_message or "", name)
            self._know(reply.node_id, reply.host, reply.port)
            return int(reply.node_id)

        return self.retried(ask)

    def has_one_leader(self, places: Iterable[Place]) -> bool:
        return len({self._leaders.get(place, -1) for place in places}) <= 1

    def offsets(
        self, wanted: Mapping[Place, int], *, is_committed: bool = False
    ) -> dict[Place, int]:
        """For each place the offset at a time in ms, at EARLIEST or at LATEST; -1: nothing is so
        new. ``is_committed``: LATEST is where the first open transaction begins."""
        from penstock.wire.kafka.generated import list_offsets as api

        def request(places: Sequence[Place]) -> Any:
            topics = [
                api.ListOffsetsTopic(
                    name,
                    [
                        api.ListOffsetsPartition(number, -1, wanted[Place(name, number)])
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(places).items()
            ]
            return api.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=READ_COMMITTED if is_committed else READ_UNCOMMITTED,
                topics=topics,
                timeout_ms=self.timeout_ms,
            )

        def ask() -> dict[Place, int]:
            found: dict[Place, int] = {}
            for reply in self.at_leaders(_LIST_OFFSETS, list(wanted), request):
                for topic in reply.topics:
                    for part in topic.partitions:
                        place = Place(topic.name, part.partition_index)
                        if part.error_code:
                            raise KafkaRefused(part.error_code, subject=str(place))
                        found[place] = part.offset
            return found

        return self.retried(ask)

    # ── Records ──────────────────────────────────────────────────────────────────────────────

    def fetch(
        self,
        wanted: Mapping[Place, int],
        *,
        wait_ms: int = 500,
        bytes_min: int = 1,
        bytes_max: int = _ANSWER_BYTES,
        partition_bytes_max: int = _PARTITION_BYTES,
        is_committed: bool = True,
    ) -> dict[Place, Fetched]:
        """What the log holds from these offsets on, which may be nothing. The first batch may begin
        before the offset asked for. Places whose leader has moved are left out,
        to be asked again, as long as there is an answer for others; errors that stay, such as
        OFFSET_OUT_OF_RANGE, stand in the answer."""

        def ask() -> dict[Place, Fetched]:
            answers = self.try_fetch(
                wanted,
                wait_ms=wait_ms,
                bytes_min=bytes_min,
                bytes_max=bytes_max,
                partition_bytes_max=partition_bytes_max,
                is_committed=is_committed,
            )
            trouble = {
                place: refusal
                for place, answer in answers.items()
                if (refusal := KafkaRefused(answer.error_code, subject=str(place))).is_passing
            }
            if trouble and len(trouble) == len(answers):
                raise next(iter(trouble.values()))
            return {place: each for place, each in answers.items() if place not in trouble}

        return self.retried(ask)

    def try_fetch(
        self,
        wanted: Mapping[Place, int],
        *,
        wait_ms: int,
        bytes_min: int = 1,
        bytes_max: int = _ANSWER_BYTES,
        partition_bytes_max: int = _PARTITION_BYTES,
        is_committed: bool = True,
    ) -> dict[Place, Fetched]:
        """One attempt, with whatever errors it brings."""

        def request(places: Sequence[Place]) -> FetchRequest:
            topics = [
                FetchTopic(
                    name,
                    ZERO_UUID,
                    [
                        FetchPartition(number, wanted[Place(name, number)], partition_bytes_max)
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(places).items()
            ]
            return FetchRequest(
                wait_ms_max=wait_ms,
                bytes_min=bytes_min,
                topics=topics,
                bytes_max=bytes_max,
                isolation_level=READ_COMMITTED if is_committed else READ_UNCOMMITTED,
            )

        replies = self.at_leaders(
            FETCH, list(wanted), request, wait_s=wait_ms / 1_000, version_max=_BY_NAME_MAX
        )
        for reply in replies:
            if reply.error_code:
                raise KafkaRefused(reply.error_code)
        return {place: fetched_of(part) for place, part in self._by_place(replies).items()}

    def produce(
        self,
        batches: Mapping[Place, bytes | memoryview],
        *,
        is_repeatable: bool,
        acks: int = ACKS_ALL,
        transactional_id: str | None = None,
    ) -> dict[Place, int]:
        """Append one batch to each place; the offsets that they begin at. ``is_repeatable``: they
        carry a producer's id and sequence numbers, so that one whose answer was lost may be sent
        again and is stored once. Raises on the first that is refused for good; the others may or
        may not have been appended by then. One that had been there before has offset -1."""
        left = dict(batches)
        placed: dict[Place, int] = {}

        def ask() -> None:
            answers = self.try_produce(left, acks=acks, transactional_id=transactional_id)
            trouble: KafkaRefused | None = None
            for place, answer in answers.items():
                if answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    placed[place] = answer.base_offset
                    del left[place]
                elif trouble is None or trouble.is_passing:
                    message = answer.error_message or ""
                    trouble = KafkaRefused(answer.error_code, message, str(place))
            if trouble is not None:
                raise trouble

        self.retried(ask, is_repeatable=is_repeatable)
        return placed

    def try_produce(
        self,
        batches: Mapping[Place, bytes | memoryview],
        *,
        acks: int = ACKS_ALL,
        transactional_id: str | None = None,
    ) -> dict[Place, ProducePartitionResponse]:
        """One attempt, with whatever errors it brings."""
        assert acks, "without an answer there is nothing to return"

        def request(places: Sequence[Place]) -> ProduceRequest:
            topics = [
                ProduceTopic(
                    name,
                    ZERO_UUID,
                    [ProducePartition(number, batches[Place(name, number)]) for number in numbers],
                )
                for name, numbers in by_topic(places).items()
            ]
            return ProduceRequest(transactional_id, acks, self.timeout_ms, topics)

        replies = self.at_leaders(PRODUCE, list(batches), request, version_max=_BY_NAME_MAX)
        return self._by_place(replies)

    def producer_id(self) -> tuple[int, int]:
        """A new one and its epoch, for batches that may be sent twice and are stored once."""
        from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest

        def ask() -> tuple[int, int]:
            request = InitProducerIdRequest(None, transaction_timeout_ms=60_000)
            reply = self.call(_INIT_PRODUCER_ID, request)
            if reply.error_code:
                raise KafkaRefused(reply.error_code)
            return reply.producer_id, reply.producer_epoch

        return self.retried(ask)

    # ── Who leads what ───────────────────────────────────────────────────────────────────────

    def _by_leader(self, places: Sequence[Place]) -> dict[int, list[Place]]:
        unknown = {place.topic for place in places if self._leaders.get(place, -1) < 0}
        if unknown:
            for topic in self.metadata(sorted(unknown)).topics:
                if topic.error_code:
                    raise KafkaRefused(topic.error_code, subject=topic.name)
        by_node: dict[int, list[Place]] = {}
        for place in places:
            node = self._leaders.get(place)
            if node is None:
                raise KafkaRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject=str(place))
            if node < 0 or node not in self._nodes:
                raise KafkaRefused(ErrorCode.LEADER_NOT_AVAILABLE, subject=str(place))
            by_node.setdefault(node, []).append(place)
        return by_node

    def _by_place(self, replies: Iterable[Any]) -> dict[Place, Any]:
        """The answers of a fetch or a produce. A leader that says it is none is forgotten."""
        answers: dict[Place, Any] = {}
        for reply in replies:
            for topic in reply.topics:
                for part in topic.partitions:
                    place = Place(topic.name, part.index)
                    answers[place] = part
                    if part.error_code in STALE_LEADER_CODES:
                        self._leaders.pop(place, None)
        return answers

    def _know(self, node_id: int, host: str, port: int) -> None:
        # A node that listens everywhere and says so is where we have reached it.
        host = self._first[0].host if host in _ANYWHERE else host
        made = KafkaNode(host, port, self._dialling)
        known = self._nodes.get(node_id)
        if known is not None and known.name == made.name:
            return
        if known is not None and known not in self._first:
            known.close()
        # One connection serves for both: the address that we were given and the one it names.
        same = [node for node in self._first if node.name == made.name]
        self._nodes[node_id] = same[0] if same else made
