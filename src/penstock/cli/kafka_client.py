"""The Kafka listener as a command sees it: one blocking socket per node, one request at a time.

Requests and answers are the values of ``wire/kafka``; which version of an API is spoken follows
from what the server says it serves. Leaders and coordinators are asked where the server names
them, so the commands work on one node and on many. Nothing here prints; a server's refusal is a
``Failure`` with the name of its error code.
"""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.cli.failure import ExitCode, Failure, timed_out
from penstock.wire.kafka.apis import API_VERSIONS, APIS, Api
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.frame import LENGTH_BYTES, encode_request_frame, parse_response_header
from penstock.wire.kafka.malformed import Malformed

ADDRESS_DEFAULT = "127.0.0.1:9092"
CLIENT_ID = "penstock-cli"
EARLIEST = -2
LATEST = -1
READ_COMMITTED = 1

_LIST_OFFSETS, _METADATA, _FIND_COORDINATOR = 2, 3, 10
_REPLY_BYTES_MAX = 256 * 1_048_576
_WAIT_MARGIN_S = 5.0

_EXIT_CODES: Mapping[int, ExitCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ExitCode.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: ExitCode.NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: ExitCode.CONFLICT,
    ErrorCode.NON_EMPTY_GROUP: ExitCode.CONFLICT,
    ErrorCode.UNKNOWN_MEMBER_ID: ExitCode.CONFLICT,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ExitCode.DENIED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ExitCode.DENIED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ExitCode.DENIED,
    ErrorCode.REQUEST_TIMED_OUT: ExitCode.TIMEOUT,
}
_FIXES: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "see which exist with `penstock topic list`",
    ErrorCode.GROUP_ID_NOT_FOUND: "see which exist with `penstock group list`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "change it with `penstock topic set`, or pick another name",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; `penstock group show` names them",
    ErrorCode.UNKNOWN_MEMBER_ID: "stop its members first; `penstock group show` names them",
}


def refused(what: str, code: int, message: str | None = None) -> Failure:
    known = code in ErrorCode._value2member_map_
    name = ErrorCode(code).name if known else f"code {code}"
    text = message or (ErrorCode(code).message if known else "")
    exit_code = _EXIT_CODES.get(code)
    if exit_code is None:
        again = known and ErrorCode(code).is_retriable
        exit_code = ExitCode.UNREACHABLE if again else ExitCode.FAILED
    fix = _FIXES.get(code, "")
    if not fix and exit_code is ExitCode.UNREACHABLE:
        fix = "try again in a moment; `penstock doctor` says how the server is"
    return Failure(what, f"{text} ({name})" if text else name, fix, exit_code=exit_code)


def check(what: str, code: int, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise refused(what, code, message)


def address_from(info: Mapping[str, Any]) -> str:
    """The listener that the admin API names; a server without one says nothing."""
    endpoints = info.get("endpoints") or {}
    return str(endpoints.get("kafka") or ADDRESS_DEFAULT)


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise Failure(
            f"'{text}' is not an address to talk to",
            "a Kafka listener is HOST:PORT",
            f"write it like {ADDRESS_DEFAULT}",
            exit_code=ExitCode.USAGE,
        )
    return host.strip("[]"), int(port)


class Place(NamedTuple):
    topic: str
    partition: int


class _Node:
    """A connection to one node, opened when first used."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._correlation_id = 0
        self._versions: dict[int, int] | None = None  # API key → the newest both sides speak

    @property
    def name(self) -> str:
        return f"{self._host}:{self._port}"

    def call(self, key: int, request: Any, wait_s: float, version_max: int | None) -> Any:
        if self._versions is None:
            self._versions = self._ask_versions()
        api = APIS[key]
        version = self._versions.get(key, -1)
        if version < api.version_min:
            raise Failure(
                f"{self.name} does not serve {api.name}",
                "it has no version of it that this command speaks",
                "is it a Penstock server of this release?",
            )
        if version_max is not None:
            version = min(version, version_max)
        return self._exchange(api, version, request, wait_s)

    def _ask_versions(self) -> dict[int, int]:
        from penstock.wire.kafka.generated.api_versions import ApiVersionsRequest

        reply = self._exchange(APIS[API_VERSIONS], 0, ApiVersionsRequest(), 0.0)
        check(f"cannot talk to {self.name}", reply.error_code)
        return {
            row.api_key: min(row.max_version, APIS[row.api_key].version_max)
            for row in reply.api_keys
            if row.api_key in APIS and row.min_version <= APIS[row.api_key].version_max
        }

    def _exchange(self, api: Api, version: int, request: Any, wait_s: float) -> Any:
        limit_s = max(self._timeout_s, wait_s + _WAIT_MARGIN_S)
        codec = api.codec()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        frame = encode_request_frame(
            api,
            version,
            correlation_id=self._correlation_id,
            client_id=CLIENT_ID,
            body=codec.encode_request(request, version),
        )
        try:
            data = self._round_trip(frame, limit_s)
            found, at = parse_response_header(data, api.response_header_version(version))
            if found != self._correlation_id:
                raise Malformed("an answer to another request")
            return codec.decode_response(data, at, version)
        except TimeoutError as error:
            self.close()
            raise timed_out(self.name, limit_s) from error
        except Malformed as error:
            self.close()
            raise Failure(
                f"{self.name} did not answer like a Kafka listener",
                str(error),
                "check the address: --kafka HOST:PORT",
                exit_code=ExitCode.UNREACHABLE,
            ) from error
        except OSError as error:
            self.close()
            raise _unreachable(self.name, error) from error
        except BaseException:
            self.close()  # also on Ctrl-C: a half-read answer must not become the next one's
            raise

    def _round_trip(self, frame: bytes, limit_s: float) -> bytes:
        if self._socket is None:
            self._socket = socket.create_connection((self._host, self._port), timeout=limit_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(limit_s)
        self._socket.sendall(frame)
        length = int.from_bytes(self._read(LENGTH_BYTES), "big", signed=True)
        if not 0 < length <= _REPLY_BYTES_MAX:
            raise Malformed(f"an answer of {length} bytes")
        return self._read(length)

    def _read(self, count: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < count:
            chunk = self._socket.recv(min(count - len(data), 1_048_576))
            if not chunk:
                raise ConnectionResetError("the server closed the connection")
            data += chunk
        return bytes(data)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _unreachable(name: str, error: OSError) -> Failure:
    reason = (
        "connection refused: nothing listens there"
        if isinstance(error, ConnectionRefusedError)
        else str(error) or type(error).__name__
    )
    return Failure(
        f"cannot reach {name}",
        reason,
        "is `penstock serve` running, and with --kafka? another address: --kafka HOST:PORT or"
        " PENSTOCK_KAFKA",
        exit_code=ExitCode.UNREACHABLE,
    )


class Kafka:
    """The cluster behind one address."""

    def __init__(self, address: str, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._first = _Node(*parse_address(address), timeout_s)
        self._nodes: dict[int, _Node] = {}
        self._leaders: dict[Place, int] = {}

    @property
    def timeout_ms(self) -> int:
        return int(self._timeout_s * 1_000)

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
        that newer versions word differently."""
        at = self._first if node is None else self._nodes[node]
        return at.call(key, request, wait_s, version_max)

    def metadata(self, topics: Iterable[str] | None = None) -> Any:
        """Of these topics or of all. Also learns who leads which partition."""
        from penstock.wire.kafka.generated.metadata import MetadataRequest, MetadataRequestTopic

        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        reply = self.call(_METADATA, request)
        for node in reply.brokers:
            self._know(node.node_id, node.host, node.port)
        for topic in reply.topics:
            for part in topic.partitions:
                self._leaders[Place(topic.name, part.partition_index)] = part.leader_id
        return reply

    def topic(self, name: str, *, what: str) -> Any:
        """One topic as metadata shows it, or the Failure that ``what`` failed."""
        (topic,) = self.metadata([name]).topics
        check(what, topic.error_code)
        return topic

    def places(self, topic: str, *, what: str) -> list[Place]:
        found = self.topic(topic, what=what)
        return sorted(Place(topic, part.partition_index) for part in found.partitions)

    def offsets(
        self, wanted: Mapping[Place, int], *, what: str, is_committed: bool = False
    ) -> dict[Place, int]:
        """For each place the offset at a time, at EARLIEST or at LATEST; -1: nothing is so new.
        ``is_committed``: LATEST is where the first open transaction begins."""
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
                isolation_level=READ_COMMITTED if is_committed else 0,
                topics=topics,
                timeout_ms=self.timeout_ms,
            )

        found: dict[Place, int] = {}
        for reply in self.at_leaders(_LIST_OFFSETS, list(wanted), request, what=what):
            for topic in reply.topics:
                for part in topic.partitions:
                    check(f"{what}: {topic.name}, {part.partition_index}", part.error_code)
                    found[Place(topic.name, part.partition_index)] = part.offset
        return found

    def at_leaders(
        self,
        key: int,
        places: Sequence[Place],
        request: Callable[[Sequence[Place]], Any],
        *,
        what: str,
        wait_s: float = 0.0,
        version_max: int | None = None,
    ) -> list[Any]:
        """The same request to each node, about the partitions that it leads."""
        unknown = {place.topic for place in places if place not in self._leaders}
        if unknown:
            for topic in self.metadata(sorted(unknown)).topics:
                check(f"{what}: {topic.name}", topic.error_code)
        by_node: dict[int, list[Place]] = {}
        for place in places:
            node = self._leaders.get(place, -1)
            if node < 0:
                code = (
                    ErrorCode.LEADER_NOT_AVAILABLE
                    if place in self._leaders
                    else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                raise refused(f"{what}: {place.topic}, {place.partition}", code)
            by_node.setdefault(node, []).append(place)
        return [
            self.call(key, request(mine), node=node, wait_s=wait_s, version_max=version_max)
            for node, mine in by_node.items()
        ]

    def has_one_leader(self, places: Iterable[Place]) -> bool:
        return len({self._leaders.get(place, -1) for place in places}) <= 1

    def coordinator(self, group: str, *, what: str) -> int:
        """The node that looks after a group."""
        from penstock.wire.kafka.generated.find_coordinator import FindCoordinatorRequest

        request = FindCoordinatorRequest(key=group)
        reply = self.call(_FIND_COORDINATOR, request, version_max=3)
        check(what, reply.error_code, reply.error_message)
        self._know(reply.node_id, reply.host, reply.port)
        return int(reply.node_id)

    def nodes(self) -> list[int]:
        return sorted(node.node_id for node in self.metadata(()).brokers)

    def _know(self, node_id: int, host: str, port: int) -> None:
        if node_id not in self._nodes:
            node = _Node(host, port, self._timeout_s)
            # The address we were given may be the only way to a server behind a gateway.
            is_first = not self._nodes and node.name == self._first.name
            self._nodes[node_id] = self._first if is_first else node

    def close(self) -> None:
        for node in (self._first, *self._nodes.values()):
            node.close()


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for place in places:
        grouped.setdefault(place.topic, []).append(place.partition)
    return grouped
