"""A blocking Kafka client for commands and Spark workers.

The client has one socket per node, with one request in progress at a time. Requests and replies are
the classes of ``wire/kafka``, in the newest version that both sides support. Requests go to the
leaders and coordinators that the cluster names. ``fetch`` returns batches as views of the reply,
``produce`` sends whole batches. A client must be used by only one thread."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

from penstock.net.kafka_client.errors import STALE_LEADER_CODES
from penstock.net.kafka_client.errors import HungUp as HungUp
from penstock.net.kafka_client.errors import KafkaRefused as KafkaRefused
from penstock.net.kafka_client.errors import KafkaTrouble as KafkaTrouble
from penstock.net.kafka_client.errors import NotKafka as NotKafka
from penstock.net.kafka_client.errors import TimedOut as TimedOut
from penstock.net.kafka_client.errors import Unreachable as Unreachable
from penstock.net.kafka_client.node import Dialling, KafkaNode
from penstock.net.kafka_client.node import Security as Security
from penstock.net.kafka_client.node import SecurityInvalid as SecurityInvalid
from penstock.net.kafka_client.node import security_from as security_from
from penstock.wire.kafka.apis import FETCH, PRODUCE
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AbortedTransaction,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchTopic,
)
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
)

EARLIEST: Final = -2
LATEST: Final = -1
GROUP: Final = 0
TRANSACTION: Final = 1

ACKS_ALL: Final = -1

_LIST_OFFSETS, _METADATA, _FIND_COORDINATOR, _LIST_GROUPS, _INIT_PRODUCER_ID = 2, 3, 10, 16, 22
_BY_NAME_MAX: Final = 12  # newer versions of Fetch and Produce use topic ids
_COORDINATOR_ALONE_MAX: Final = 3  # newer versions look up several coordinators
_PAUSE_S, _PAUSE_S_MAX = 0.1, 2.0
_PARTITION_BYTES: Final = 1_048_576
_ANSWER_BYTES: Final = 8 * 1_048_576
_NO_RECORDS: Final = memoryview(b"")
_ANYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104

T = TypeVar("T")


class Place(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}, {self.partition}"


class Group(NamedTuple):
    name: str
    node: int
    type: str
    state: str
    protocol: str


class Fetched(NamedTuple):
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview  # batches; the last one may be incomplete
    aborted: Sequence[AbortedTransaction]  # readers of committed records skip these


def parse_addresses(text: str) -> list[tuple[str, int]]:
    return [_address(part.strip()) for part in text.split(",")]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"the address '{text}' does not have the form HOST:PORT")
    return host.strip("[]"), int(port)


class KafkaClient:
    """A client of a cluster, given the addresses of some nodes. Methods raise KafkaTrouble."""

    def __init__(
        self,
        addresses: str,
        *,
        security: Security | None = None,
        timeout_s: float = 30.0,
        client_id: str = "penstock",
    ) -> None:
        """Create a client. ``timeout_s`` limits each method call, including its retries."""
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

    def __exit__(self, *_: object) -> None:
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
        """Send a request once, to ``node`` or else to any node, and return the decoded reply."""
        at = self._any() if node is None else self._nodes[node]
        return at.call(key, request, wait_s=wait_s, version_max=version_max)

    def _any(self) -> KafkaNode:
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
        raise AssertionError("the client needs at least one address")

    def retried(self, ask: Callable[[], T], *, is_repeatable: bool = True) -> T:
        """Call ``ask`` until it succeeds, fails for good, or the timeout is over. After a lost
        reply, ``ask`` is called again only if it is repeatable and the cluster was once reached."""
        ends_at = time.monotonic() + self._dialling.timeout_s
        pause_s = _PAUSE_S
        while True:
            try:
                return ask()
            except KafkaTrouble as trouble:
                has_reply = isinstance(trouble, KafkaRefused)
                may_repeat = has_reply or (is_repeatable and bool(self._nodes))
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
        return [
            self.call(key, request(mine), node=node, wait_s=wait_s, version_max=version_max)
            for node, mine in self._by_leader(places).items()
        ]

    # ── The cluster ──────────────────────────────────────────────────────────────────────────

    def metadata(self, topics: Iterable[str] | None = None, *, may_create: bool = False) -> Any:
        """Return the metadata of the given topics, or of all topics, and remember their leaders.
        ``may_create`` allows the server to create missing topics."""
        from penstock.wire.kafka.generated.metadata import MetadataRequest, MetadataRequestTopic

        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=may_create)
        reply = self.call(_METADATA, request)
        for node in reply.brokers:
            self._know(node.node_id, node.host, node.port)
        for topic in reply.topics:
            for part in topic.partitions:
                self._leaders[Place(topic.name, part.partition_index)] = part.leader_id
        return reply

    def topic(self, name: str, *, may_create: bool = False) -> Any:
        (topic,) = self.metadata([name], may_create=may_create).topics
        if topic.error_code:
            raise KafkaRefused(topic.error_code, subject=name)
        return topic

    def places(self, topic: str) -> list[Place]:
        found = self.topic(topic)
        return sorted(Place(topic, part.partition_index) for part in found.partitions)

    def nodes(self) -> list[int]:
        return sorted(node.node_id for node in self.metadata(()).brokers)

    def groups(self, nodes: Iterable[int] | None = None) -> list[Group]:
        """Return the groups that the given nodes coordinate; without ``nodes`` all groups."""
        from penstock.wire.kafka.generated.list_groups import ListGroupsRequest

        found = []
        for node in self.nodes() if nodes is None else nodes:
            reply = self.call(_LIST_GROUPS, ListGroupsRequest(), node=node)
            if reply.error_code:
                raise KafkaRefused(reply.error_code, subject=f"listing the groups of node {node}")
            for one in reply.groups:
                kind = (one.group_type or "classic").lower()
                found.append(Group(one.group_id, node, kind, one.group_state, one.protocol_type))
        return sorted(found)

    def coordinator(self, name: str, *, kind: int = GROUP) -> int:
        """Return the coordinator of a group, or of a transactional id (``kind`` TRANSACTION)."""
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
        """Return an offset for each partition. ``wanted`` has EARLIEST, LATEST or a time in ms for
        each; a time finds the first record at or after that time (-1 if there is none). With
        ``is_committed``, LATEST is the start of the first open transaction, if there is one."""
        from penstock.wire.kafka.generated import list_offsets as api

        def request(places: Sequence[Place]) -> Any:
            def part(place: Place) -> Any:
                return api.ListOffsetsPartition(place.partition, -1, wanted[place])

            return api.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=READ_COMMITTED if is_committed else READ_UNCOMMITTED,
                topics=_topics(places, api.ListOffsetsTopic, part),
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
        self, wanted: Mapping[Place, int], *, wait_ms: int = 500, **limits: Any
    ) -> dict[Place, Fetched]:
        """Return batches of each partition. The first batch may begin before the requested offset.
        Partitions whose leaders have changed are missing in the result; if all are missing, the
        call is retried. Other errors, such as OFFSET_OUT_OF_RANGE, are in the result."""

        def ask() -> dict[Place, Fetched]:
            replies = self.try_fetch(wanted, wait_ms=wait_ms, **limits)
            trouble = {
                place: refusal
                for place, reply in replies.items()
                if (refusal := KafkaRefused(reply.error_code, subject=str(place))).is_passing
            }
            if trouble and len(trouble) == len(replies):
                raise next(iter(trouble.values()))
            return {place: each for place, each in replies.items() if place not in trouble}

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
        def request(places: Sequence[Place]) -> FetchRequest:
            def part(place: Place) -> FetchPartition:
                return FetchPartition(place.partition, wanted[place], partition_bytes_max)

            return FetchRequest(
                wait_ms_max=wait_ms,
                bytes_min=bytes_min,
                topics=_topics(places, FetchTopic, part),
                bytes_max=bytes_max,
                isolation_level=READ_COMMITTED if is_committed else READ_UNCOMMITTED,
            )

        replies = self.at_leaders(
            FETCH, list(wanted), request, wait_s=wait_ms / 1_000, version_max=_BY_NAME_MAX
        )
        for reply in replies:
            if reply.error_code:
                raise KafkaRefused(reply.error_code)
        return {place: _fetched(part) for place, part in self._by_place(replies).items()}

    def produce(
        self,
        batches: Mapping[Place, bytes | memoryview],
        *,
        is_repeatable: bool,
        acks: int = ACKS_ALL,
        transactional_id: str | None = None,
    ) -> dict[Place, int]:
        """Append one batch to each partition. Return the first offset of each, -1 for a duplicate.
        ``is_repeatable`` says that batches have a producer id and sequence numbers, so that they
        can be sent again if no reply comes. After an error, some batches may be stored."""
        left = dict(batches)
        placed: dict[Place, int] = {}

        def ask() -> None:
            replies = self.try_produce(left, acks=acks, transactional_id=transactional_id)
            trouble: KafkaRefused | None = None
            for place, reply in replies.items():
                if reply.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    placed[place] = reply.base_offset
                    del left[place]
                elif trouble is None or trouble.is_passing:
                    message = reply.error_message or ""
                    trouble = KafkaRefused(reply.error_code, message, str(place))
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
        assert acks, "with acks=0 there is no reply"

        def request(places: Sequence[Place]) -> ProduceRequest:
            def part(place: Place) -> ProducePartition:
                return ProducePartition(place.partition, batches[place])

            topics = _topics(places, ProduceTopic, part)
            return ProduceRequest(transactional_id, acks, self.timeout_ms, topics)

        replies = self.at_leaders(PRODUCE, list(batches), request, version_max=_BY_NAME_MAX)
        return self._by_place(replies)

    def producer_id(self) -> tuple[int, int]:
        from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest

        def ask() -> tuple[int, int]:
            request = InitProducerIdRequest(None, transaction_timeout_ms=60_000)
            reply = self.call(_INIT_PRODUCER_ID, request)
            if reply.error_code:
                raise KafkaRefused(reply.error_code)
            return reply.producer_id, reply.producer_epoch

        return self.retried(ask)

    # ── Leaders ──────────────────────────────────────────────────────────────────────────────

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
        """Return the reply for each partition, and forget leaders that are out of date."""
        by_place: dict[Place, Any] = {}
        for reply in replies:
            for topic in reply.topics:
                for part in topic.partitions:
                    place = Place(topic.name, part.index)
                    by_place[place] = part
                    if part.error_code in STALE_LEADER_CODES:
                        self._leaders.pop(place, None)
        return by_place

    def _know(self, node_id: int, host: str, port: int) -> None:
        # A node that advertises "any address" is at the address by which it was reached.
        host = self._first[0].host if host in _ANYWHERE else host
        made = KafkaNode(host, port, self._dialling)
        known = self._nodes.get(node_id)
        if known is not None and known.name == made.name:
            return
        if known is not None and known not in self._first:
            known.close()
        # If a given address is also an advertised one, both use one connection.
        same = [node for node in self._first if node.name == made.name]
        self._nodes[node_id] = same[0] if same else made


def _fetched(part: FetchPartitionResponse) -> Fetched:
    records = [piece for piece in part.records if isinstance(piece, memoryview)]
    return Fetched(
        part.error_code,
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        records[0] if records else _NO_RECORDS,
        part.aborted or (),
    )


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for place in places:
        grouped.setdefault(place.topic, []).append(place.partition)
    return grouped


def _topics(places: Sequence[Place], topic: Any, part: Callable[[Place], Any]) -> list[Any]:
    return [
        topic(name=name, partitions=[part(Place(name, number)) for number in numbers])
        for name, numbers in by_topic(places).items()
    ]
