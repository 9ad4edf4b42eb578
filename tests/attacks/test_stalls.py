"""No request keeps the event loop busy for more than 20 ms at a stretch, whoever sends it."""

from __future__ import annotations

import itertools
import json
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from _pytest.mark import ParameterSet
from tests.attacks.frames import KEYS, Wire, framed
from tests.attacks.kit import Operator, exchange, signed
from tests.attacks.stall_requests import (
    KAFKA,
    PARTITIONS_MAX,
    SQS,
    Shape,
    Values,
    frame,
    shapes,
)
from tests.attacks.stalls import LoopServer, Turns
from tests.attacks.test_batches import batch
from tests.harness.full import part
from tests.harness.server import Server

from penstock.frontend.aws.sqs.actions import ACTIONS
from penstock.wire.kafka.apis import APIS, parse_response_header
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from penstock.wire.kafka.generated.create_topics import CreatableTopic
from penstock.wire.kafka.generated.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.kafka.primitives import UVARINT, ZERO_UUID
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

CASES = [(name, shape) for name in KAFKA for shape in shapes(name)]
CLIENTS = ("open", "root", "no-policy")


def title(name: str, shape: Shape) -> str:
    return f"{name}-{shape.path or 'no-array'}-v{shape.version}"


def by_clients(cases: Mapping[str, tuple[object, ...]]) -> Sequence[ParameterSet]:
    """Return each case with one of the clients, another one for other commits; with all of them in
    a full run."""
    turns = [CLIENTS[first:] + CLIENTS[:first] for first in range(len(CLIENTS))]
    rows = [
        pytest.param(client, *values, id=f"{client}-{name}")
        for (name, values), clients in zip(cases.items(), itertools.cycle(turns), strict=False)
        for client in clients
    ]
    return part(rows, len(cases))


QUEUE = "held"
TOPICS = 200
GROUPS = 300
PARTITIONS = 1_000  # of one topic
TAGS_MAX = 10_000
BEFORE_LOGIN = {"SaslHandshake", "SaslAuthenticate"}


@pytest.fixture(scope="module")
def open_loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("open")) as running:
        fill(running, ("", ""))
        yield running


@pytest.fixture(scope="module")
def locked_loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("locked"), is_auth_on=True) as running:
        fill(running, (str(running.root.access_key), str(running.root.secret_key)))
        yield running


@pytest.fixture(scope="module", params=["open", "locked"])
def server(request: pytest.FixtureRequest) -> LoopServer:
    found: LoopServer = request.getfixturevalue(f"{request.param}_loop")
    return found


class Client(NamedTuple):
    server: LoopServer
    login: tuple[str, str]  # key and secret; empty where authentication is off

    def wire(self) -> Wire:
        return wire_of(self.server, self.login)


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    """Authentication off; on and a user who may do everything; on and a user without any policy."""
    if request.param == "open":
        return Client(request.getfixturevalue("open_loop"), ("", ""))
    server = request.getfixturevalue("locked_loop")
    credentials = server.root
    if request.param == "no-policy":
        _, credentials = Operator(server, server.root).user()
    return Client(server, (str(credentials.access_key), str(credentials.secret_key)))


def wire_of(server: Server, login: tuple[str, str]) -> Wire:
    wire = Wire(server)
    if login[0]:
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
        token = "\0".join(("", *login)).encode()
        assert wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code == 0
    return wire


def fill(server: Server, login: tuple[str, str]) -> None:
    """Some of the topics that requests name, so that actions have something to do."""
    topics = [CreatableTopic(f"name-{number}", 1, 1) for number in range(TOPICS)]
    topics.append(CreatableTopic("wide", PARTITIONS, 1))
    topics += [CreatableTopic(f"{'a' * 200}-{number}", 1, 1) for number in range(20)]
    here = [OffsetCommitRequestTopic(HERE, partitions=[OffsetCommitRequestPartition(0, 1)])]
    with wire_of(server, login) as wire:
        made = wire.ask("CreateTopics", 5, topics=topics, timeout_ms=30_000)
        assert {each.error_code for each in made.topics} == {0}
        for number in range(GROUPS):
            wire.ask(
                "OffsetCommit",
                7,
                group_id=f"there-{number}",
                generation_id_or_member_epoch=-1,
                topics=here,
            )


# ── The table is complete ────────────────────────────────────────────────────────────────────


def test_every_kafka_api_and_every_sqs_action_is_in_the_table() -> None:
    assert set(KAFKA) == {api.name for api in APIS.values()}
    assert set(SQS) == set(ACTIONS)


# ── Kafka ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.full_set
@pytest.mark.parametrize(
    ("client", "name", "shape"),
    by_clients({title(*case): case for case in CASES}),
    indirect=["client"],
)
def test_a_request_at_its_bound_is_served_without_a_stall(
    client: Client, name: str, shape: Shape
) -> None:
    sent = frame(name, shape, KAFKA[name].bound_of(shape.path))
    with client.wire() as wire, client.server.watch() as turns:
        wire.socket.settimeout(60)  # thousands of quotas take 15 s on a busy machine
        wire.send(sent)
        reply = wire.read_frame()
    turns.check()
    if name not in BEFORE_LOGIN:
        assert reply is not None, "hung up on"


# The decoder rejects it before anybody asks who sent it: one client is enough.
@pytest.mark.parametrize("client", ["open"], indirect=True)
@pytest.mark.parametrize(
    ("name", "shape"), [pytest.param(*case, id=title(*case)) for case in CASES if case[1].path]
)
def test_a_request_above_its_bound_is_rejected(
    client: Client, name: str, shape: Shape, caplog: pytest.LogCaptureFixture
) -> None:
    bound = KAFKA[name].bound_of(shape.path)
    sent = frame(name, shape, bound + 1)
    with client.wire() as wire, client.server.watch() as turns:
        wire.send(sent)
        reply = wire.read_frame()
    turns.check()
    if reply is not None:
        assert error_code(name, shape.version, reply) == ErrorCode.INVALID_REQUEST
        return
    *_, line = [
        each for each in caplog.records if each.message == "request rejected: too many entries"
    ]
    assert (line.api, line.count, line.bound) == (name, bound + 1, bound)  # type: ignore[attr-defined]


# Requests that stopped the loop for seconds: name, array, version, count, values. The last ones
# repeat one entry.
HERE = "name-0"
ATTACKS: dict[str, tuple[str, Shape, int, Values]] = {
    "metadata": ("Metadata", Shape("topics", 4), 100_000, {}),
    "describe-groups": ("DescribeGroups", Shape("groups", 0), 100_000, {}),
    "describe-configs": ("DescribeConfigs", Shape("resources", 1), 100_000, {}),
    "list-offsets": ("ListOffsets", Shape("topics.partitions", 1), 500_000, {}),
    "delete-topics": ("DeleteTopics", Shape("topic_names", 1), 300_000, {}),
    "find-coordinator": ("FindCoordinator", Shape("coordinator_keys", 4), 300_000, {}),
    "create-topics": ("CreateTopics", Shape("topics", 2), 100_000, {}),
    "one-topic": ("Metadata", Shape("topics", 4), 300_000, {"topics.name": HERE}),
    "one-config": (
        "DescribeConfigs",
        Shape("resources", 1),
        20_000,
        {"resources.resource_name": HERE, "resources.configuration_keys": None},
    ),
}


@pytest.mark.full_set
@pytest.mark.parametrize(
    ("client", "attack"), by_clients({name: (name,) for name in ATTACKS}), indirect=["client"]
)
def test_a_request_far_above_its_bound_is_rejected(client: Client, attack: str) -> None:
    name, shape, count, values = ATTACKS[attack]
    sent = frame(name, shape, count, values)
    with client.wire() as wire, client.server.watch() as turns:
        wire.send(sent)
        assert wire.read_frame() is None, "these replies have no field for an error of the whole"
    turns.check()


REPEATED: dict[str, tuple[str, Shape, Values, str]] = {
    "metadata": ("Metadata", Shape("topics", 12), {"topics.name": HERE}, "topics"),
    "configs": (
        "DescribeConfigs",
        Shape("resources", 4),
        {"resources.resource_name": HERE, "resources.configuration_keys": None},
        "results",
    ),
    "groups": ("DescribeGroups", Shape("groups", 5), {"groups": "g"}, "groups"),
    "new-groups": ("ConsumerGroupDescribe", Shape("group_ids", 1), {"group_ids": "g"}, "groups"),
    "deleted-groups": ("DeleteGroups", Shape("groups_names", 2), {"groups_names": "g"}, "results"),
    "deleted-topics": (
        "DeleteTopics",
        Shape("topic_names", 5),
        {"topic_names": HERE},
        "responses",
    ),
    "coordinators": (
        "FindCoordinator",
        Shape("coordinator_keys", 4),
        {"coordinator_keys": "g"},
        "coordinators",
    ),
    "transactions": (
        "DescribeTransactions",
        Shape("transactional_ids", 0),
        {"transactional_ids": "t"},
        "transaction_states",
    ),
}


@pytest.mark.parametrize("case", REPEATED)
def test_an_entry_that_is_repeated_is_answered_once(client: Client, case: str) -> None:
    name, shape, values, field = REPEATED[case]
    with client.wire() as wire, client.server.watch() as turns:
        wire.send(frame(name, shape, KAFKA[name].bound_of(shape.path), values))
        reply = wire.read_frame()
    turns.check()
    assert reply is not None
    (told,) = getattr(decoded(name, shape.version, reply), field)
    if name == "DeleteTopics":  # as Kafka: which of them is meant cannot be told
        assert told.error_code == ErrorCode.INVALID_REQUEST


def test_a_partition_that_is_repeated_is_rejected(client: Client) -> None:
    shape = Shape("topics.partitions", 7)
    values = {"topics.name": HERE, "topics.partitions.partition_index": 0}
    with client.wire() as wire, client.server.watch() as turns:
        wire.send(frame("ListOffsets", shape, 10_000, values))
        reply = wire.read_frame()
    turns.check()
    assert reply is not None
    (topic,) = decoded("ListOffsets", 7, reply).topics
    assert {each.error_code for each in topic.partitions} == {ErrorCode.INVALID_REQUEST}


EVERYTHING_THERE_IS: dict[str, tuple[str, Shape, Values]] = {
    "topics": ("Metadata", Shape("", 12), {"topics": None}),
    "log-dirs": ("DescribeLogDirs", Shape("", 4), {"topics": None}),
    "groups": ("ListGroups", Shape("", 3), {}),
    "offsets": ("OffsetFetch", Shape("", 7), {"group_id": "committed", "topics": None}),
    "wide-metadata": ("Metadata", Shape("topics", 12), {"topics.name": "wide"}),
    "configs": (
        "DescribeConfigs",
        Shape("resources", 4),
        {
            "resources.resource_name": lambda number: f"name-{number}",
            "resources.configuration_keys": None,
        },
    ),
    "commit": (
        "OffsetCommit",
        Shape("topics.partitions", 7),
        {"group_id": "committed", "generation_id_or_member_epoch": -1, "topics.name": "wide"},
    ),
}


@pytest.mark.parametrize("case", EVERYTHING_THERE_IS)
def test_what_there_is_is_listed_without_a_stall(client: Client, case: str) -> None:
    name, shape, values = EVERYTHING_THERE_IS[case]
    count = TOPICS if case == "configs" else PARTITIONS if case == "commit" else 1
    with client.wire() as wire, client.server.watch() as turns:
        wire.socket.settimeout(60)  # logs are opened when they are first asked for
        wire.send(frame(name, shape, count, values))
        assert wire.read_frame() is not None
    turns.check()


# ── Produce and Fetch ────────────────────────────────────────────────────────────────────────


def names(count: int, partitions: int = 1) -> list[FetchTopic]:
    wanted = [FetchPartition(index, 0, 1_000) for index in range(partitions)]
    return [FetchTopic(f"name-{number}", ZERO_UUID, wanted) for number in range(count)]


SESSIONS: dict[str, tuple[list[FetchTopic], list[FetchTopic]]] = {
    "topics": (names(PARTITIONS_MAX), names(2 * PARTITIONS_MAX)[PARTITIONS_MAX:]),
    "partitions": (
        [FetchTopic("wide", ZERO_UUID, names(1, PARTITIONS_MAX)[0].partitions)],
        names(1, PARTITIONS_MAX),
    ),
}


@pytest.mark.parametrize("case", SESSIONS)
def test_a_fetch_session_as_large_as_it_may_be(client: Client, case: str) -> None:
    """It begins, grows, reads another way, has nothing new, and ends with a new one."""
    first, more = SESSIONS[case]
    with client.wire() as wire:
        wire.socket.settimeout(60)

        watched: list[Turns] = []

        def fetch(epoch: int, **fields: Any) -> Any:
            asked = FetchRequest(0, 1, session_epoch=epoch, **fields)
            with client.server.watch() as turns:
                reply = wire.ask_for("Fetch", 12, asked)
            watched.append(turns)
            assert reply.error_code == 0
            return reply

        wire.ask_for("Fetch", 12, FetchRequest(0, 1, first))  # opens the logs
        kept = fetch(0, topics=first).session_id
        assert kept > 0, "as many as one request may have fit into a session"
        fetch(1, session_id=kept, topics=more)
        fetch(2, session_id=kept, topics=(), isolation_level=READ_COMMITTED)
        fetch(3, session_id=kept, topics=())
        again = fetch(0, session_id=kept, topics=first)
        assert sum(len(each.partitions) for each in again.topics) == PARTITIONS_MAX
        fetch(-1, session_id=again.session_id, topics=())
    for turns in watched:
        turns.check()


def test_records_for_many_partitions_are_appended_without_a_stall(open_loop: LoopServer) -> None:
    parts = [ProducePartition(index, batch()) for index in range(PARTITIONS)]
    topics = [ProduceTopic("wide", ZERO_UUID, parts)]
    topics += [
        ProduceTopic(f"name-{number}", ZERO_UUID, [ProducePartition(0, batch())])
        for number in range(1, TOPICS)
    ]
    with wire_of(open_loop, ("", "")) as wire:
        wire.socket.settimeout(60)
        for _ in range(2):  # logs are opened when they are first written to
            with open_loop.watch() as turns:
                reply = wire.ask_for("Produce", 9, ProduceRequest(None, -1, 30_000, topics))
        turns.check()
    results = [each for topic in reply.topics for each in topic.partitions]
    assert [each.error_code for each in results] == [0] * (PARTITIONS + TOPICS - 1)


def test_topics_without_partitions_are_served_without_a_stall(client: Client) -> None:
    empty = [ProduceTopic(f"name-{number}", ZERO_UUID, ()) for number in range(PARTITIONS_MAX)]
    requests = {
        "Produce": ProduceRequest(None, 1, 1_000, empty),
        "Fetch": FetchRequest(0, 1, names(PARTITIONS_MAX, 0)),
    }
    for name, asked in requests.items():
        with client.wire() as wire, client.server.watch() as turns:
            reply = wire.ask_for(name, 9, asked)
        turns.check()
        assert reply is not None


# ── Tags and patterns ────────────────────────────────────────────────────────────────────────


def test_tagged_fields_are_bounded_in_all_sections_together(client: Client) -> None:
    """One section with too many, in the body and in the header; and one tag in each of many."""
    tags = b"".join(b"\x63\x00" for _ in range(TAGS_MAX + 1))
    section = UVARINT[TAGS_MAX + 1] + tags
    plain = frame("Metadata", Shape("topics", 12), 1)
    with client.wire() as wire, client.server.watch() as turns:
        wire.send(framed(plain[4:-1] + section))
        assert wire.read_frame() is None
    turns.check()
    header = struct.pack(">hhih", 3, 12, 7, -1)
    with client.wire() as wire, client.server.watch() as turns:
        wire.send(framed(header + section + b"\x00\x00\x00\x00\x00"))
        assert wire.read_frame() is None
    turns.check()
    topic = bytes(16) + b"\x02t" + b"\x02\x63\x00\x64\x00"  # two tags
    topics = UVARINT[TAGS_MAX // 2 + 2] + topic * (TAGS_MAX // 2 + 1)
    with client.wire() as wire, client.server.watch() as turns:
        wire.send(framed(header + b"\x00" + topics + b"\x00\x00\x00"))
        assert wire.read_frame() is None
    turns.check()


PATTERNS = (
    "(.*a){50}b",
    "(.*.*.*.*a){20}b",
    "([a-z]*[a-y]*){60}b",
    "(a?){120}b",
    r"(?i)(\b|\pL|[[:^digit:]a-z]){0,100}b",
    "[" + "a-z" * 600 + "]*b",
    "(a|" * 99 + "b" + ")" * 99,
)


@pytest.mark.full_set
@pytest.mark.parametrize(
    ("client", "pattern"), by_clients({each: (each,) for each in PATTERNS}), indirect=["client"]
)
def test_patterns_are_matched_without_a_stall(client: Client, pattern: str) -> None:
    """Against names that are nearly matched, by a member that joins, and again when it beats."""
    fields = {
        "group_id": f"patterns-{uuid.uuid4().hex[:8]}",
        "member_id": uuid.uuid4().hex,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_regex": pattern,
        "subscribed_topic_names": None,
        "topic_partitions": [],
    }
    with client.wire() as wire, client.server.watch() as turns:
        wire.socket.settimeout(60)
        reply = wire.ask("ConsumerGroupHeartbeat", 1, **fields)
    turns.check()
    assert reply is not None
    if client.login[0] and client.login[0] != client.server.root.access_key:
        assert reply.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        return
    assert reply.error_code == 0
    began = time.thread_time()
    with client.wire() as wire, client.server.watch() as turns:
        reply = wire.ask(
            "ConsumerGroupHeartbeat", 1, **{**fields, "member_epoch": reply.member_epoch}
        )
    assert reply.error_code == 0
    assert turns.total_ms < 200, f"matched again: {turns.total_ms:.0f} ms"
    assert time.thread_time() - began < 1


def decoded(name: str, version: int, reply: bytes) -> Any:
    api = APIS[KEYS[name]]
    _, at = parse_response_header(reply, api.response_header_version(version))
    return api.codec().decode_response(reply, at, version)


def error_code(name: str, version: int, reply: bytes) -> int:
    return int(decoded(name, version, reply).error_code)


# ── SQS ──────────────────────────────────────────────────────────────────────────────────────


def sqs_lines(server: LoopServer, action: str, body: bytes) -> list[tuple[str, str]]:
    if server.root.access_key:
        return signed(server, action, body, credentials=server.root)
    return [
        ("Host", urlsplit(server.url).netloc),
        ("X-Amz-Target", f"AmazonSQS.{action}"),
        ("Content-Type", "application/x-amz-json-1.0"),
    ]


@pytest.mark.parametrize("action", SQS)
def test_an_sqs_action_at_its_largest(server: LoopServer, action: str) -> None:
    def ask(name: str, **fields: object) -> tuple[int, bytes]:
        body = json.dumps(fields).encode()
        return exchange(server, sqs_lines(server, name, body), body)

    status, reply = ask("CreateQueue", QueueName=QUEUE)
    assert status == 200, reply
    body = json.dumps({"QueueUrl": json.loads(reply)["QueueUrl"], **SQS[action]}).encode()
    lines = sqs_lines(server, action, body)
    with server.watch() as turns:
        exchange(server, lines, body)
    turns.check()
