"""``python -m benchmarks.kafka_answers``: the same requests to Apache Kafka 4.3 and to Penstock, on
one node and on three. Prints every difference between the replies; five minutes.

The requests are in ``kafka_questions.py``. Replies are compared field by field, without what must
differ: ids, addresses, times, and the order of lists that have none. Texts for people are compared
too, and counted apart. Differences that stay are in docs/kafka.md with their reasons."""

import argparse
import itertools
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
from tests.harness.cluster import PenstockCluster
from tests.harness.server import Server

from benchmarks.apache_cluster import ApacheCluster
from benchmarks.kafka_questions import COORDINATOR, EVERY, LEADER, Id, Question, questions
from benchmarks.server import NotAvailable
from penstock.wire.kafka.apis import APIS, FETCH, PRODUCE, Api
from penstock.wire.kafka.frame import encode_request_frame, parse_response_header

ASK_S_MAX: Final = 30.0
SETTLE_S_MAX: Final = 30.0
RETRIABLE: Final = (5, 14, 15, 16)  # no leader, coordinator loading, not available, moved
TEXTS: Final = ("error_message",)
# What differs between any two systems.
VARIABLE: Final = frozenset(
    ("cluster_id", "topic_id", "host", "port", "throttle_time_ms", "leader_epoch", "member_id",
     "log_append_time_ms", "timestamp", "partition_leader_epoch", "documentation", "producer_id",
     "finalized_features_epoch", "broker_epoch", "client_host", "node_endpoints", "config_type",
     "controller_id", "leader_id", "isr_nodes", "eligible_leader_replicas", "high_watermark",
     "log_end_offset", "last_fetch_timestamp", "last_caught_up_timestamp", "salt", "coordinator")
)  # fmt: skip
NAMES: Final = {api.name: api for api in APIS.values()}
# By which field the entries of a list are told apart.
KEYS: Final = (
    *("name", "topic", "topic_name", "api_key", "resource_name", "partition_index", "index"),
    *("partition_id", "node_id", "broker_id", "group_id", "user", "key"),
)


class Client:
    """Asks the nodes of one system."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self.ports = ports
        self._sockets: dict[int, socket.socket] = {}
        self._numbers = itertools.count(1)

    def ask(self, node: int, name: str, version: int, fields: Mapping[str, Any]) -> Any:
        """Return the reply as plain values, or a text that says why there is none."""
        api = NAMES.get(name)
        if api is None:
            return "Penstock has no such API"
        try:
            return self._ask(node, api, version, fields)
        except (OSError, EOFError) as error:
            self._sockets.pop(node).close()
            return f"the connection ended ({type(error).__name__})"

    def _ask(self, node: int, api: Api, version: int, fields: Mapping[str, Any]) -> Any:
        codec, package = api.codec(), "" if api.key in (PRODUCE, FETCH) else "generated."
        module = import_module(f"penstock.wire.kafka.{package}{api.snake}")
        kind = getattr(module, f"{api.name}Request")
        request = built(kind, self._resolve(node, fields))
        body = codec.encode_request(request, version)
        number = next(self._numbers)
        frame = encode_request_frame(
            api, version, correlation_id=number, client_id="answers", body=body
        )
        connection = self._sockets.get(node)
        if connection is None:
            address = ("127.0.0.1", self.ports[node])
            connection = self._sockets[node] = socket.create_connection(address, ASK_S_MAX)
        connection.sendall(frame)
        (size,) = struct.unpack(">i", _read(connection, 4))
        whole = _read(connection, size)
        found, at = parse_response_header(whole, api.response_header_version(version))
        assert found == number, "a reply to another request"
        return msgspec.to_builtins(
            codec.decode_response(whole, at, version), builtin_types=(bytes,)
        )

    def _resolve(self, node: int, value: Any) -> Any:
        if isinstance(value, Id):
            asked = {"topics": [{"name": value.topic}], "allow_auto_topic_creation": False}
            return self.ask(node, "Metadata", 12, asked)["topics"][0]["topic_id"]
        if isinstance(value, Mapping):
            return {key: self._resolve(node, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._resolve(node, item) for item in value]
        return value

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()

    def replies(self, question: Question) -> dict[int, Any]:
        """By the position of the node among those asked: systems may lead on different nodes."""
        if question.at == EVERY:
            asked = list(self.ports)
        elif isinstance(question.at, int):
            asked = [question.at]
        else:
            asked = [self._find(question)]
        return {number: self._settled(node, question) for number, node in enumerate(asked, 1)}

    def _settled(self, node: int, question: Question) -> Any:
        """Ask again while the system is busy with what was asked before."""
        until = time.monotonic() + SETTLE_S_MAX
        while True:
            reply = self.ask(node, question.api, question.version, question.fields)
            if time.monotonic() > until or not any(code in RETRIABLE for code in _codes(reply)):
                return reply
            time.sleep(0.2)

    def _find(self, question: Question) -> int:
        first = next(iter(self.ports))
        until = time.monotonic() + SETTLE_S_MAX
        while time.monotonic() < until:
            if question.at == LEADER:
                asked = {"topics": [{"name": question.of}], "allow_auto_topic_creation": False}
                (topic,) = self.ask(first, "Metadata", 12, asked)["topics"]
                leaders = [one["leader_id"] for one in topic["partitions"]]
                if leaders and leaders[0] > 0:
                    return int(leaders[0])
            else:
                assert question.at == COORDINATOR
                asked = {"key_type": 0, "coordinator_keys": [question.of]}
                (one,) = self.ask(first, "FindCoordinator", 4, asked)["coordinators"]
                if one["error_code"] == 0:
                    return int(one["node_id"])
            time.sleep(0.2)
        raise NotAvailable(f"no {question.at} of {question.of}")


def built(kind: Any, value: Any) -> Any:
    """A message from plain values. ``msgspec.convert`` does not take fields of bytes or views."""
    if isinstance(value, dict):
        kind = next((one for one in get_args(kind) if isinstance(one, type)), kind)
        hints = get_type_hints(kind)
        return kind(**{name: built(hints[name], item) for name, item in value.items()})
    if isinstance(value, list):
        sequence = next((one for one in get_args(kind) if get_origin(one)), kind)
        return [built(get_args(sequence)[0], item) for item in value]
    return value


def _read(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _codes(reply: Any) -> Iterator[int]:
    if isinstance(reply, dict):
        for name, value in reply.items():
            if name == "error_code":
                yield value
            else:
                yield from _codes(value)
    elif isinstance(reply, list | tuple):
        for item in reply:
            yield from _codes(item)


# ── Comparing ────────────────────────────────────────────────────────────────────────────────


def differences(
    kafka: Any, penstock: Any, ignored: frozenset[str], path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Where two replies differ: path, and both values. Entries of a list go by their names."""
    if isinstance(kafka, dict) and isinstance(penstock, dict):
        for name in kafka:
            if name not in VARIABLE and name not in ignored:
                below = f"{path}.{name}" if path else name
                yield from differences(kafka[name], penstock[name], ignored, below)
        return
    theirs, ours = _by_label(kafka), _by_label(penstock)
    if theirs is None or ours is None:
        if _plain(kafka) != _plain(penstock):
            yield path, _plain(kafka), _plain(penstock)
        return
    for label in [*theirs, *[label for label in ours if label not in theirs]]:
        before, now = theirs.get(label), ours.get(label)
        if before is None or now is None:
            if not str(label).startswith("penstock."):  # our own configs
                yield f"{path}[{label}]", before and "there", now and "there"
        else:
            yield from differences(before, now, ignored, f"{path}[{label}]")


def _by_label(reply: Any) -> dict[Any, Any] | None:
    """The entries of a list of messages by what tells them apart; None for anything else."""
    if not isinstance(reply, list | tuple) or not all(isinstance(one, dict) for one in reply):
        return None
    return {
        next((item[key] for key in KEYS if item.get(key) not in ("", None)), number): item
        for number, item in enumerate(reply)
    }


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | tuple) else value


def compare(nodes: int, folder: Path, *, only: str) -> tuple[int, int]:
    """Return how many fields differ, and how many texts."""
    found = texts = 0
    with ExitStack() as stack:
        apache = stack.enter_context(ApacheCluster(folder / "apache", nodes=nodes))
        kafka = Client(dict(enumerate(apache.ports, 1)))
        stack.callback(kafka.close)
        penstock = Client(_penstock(stack, folder / "penstock", nodes))
        stack.callback(penstock.close)
        for question in questions(nodes):
            theirs, ours = (system.replies(question) for system in (kafka, penstock))
            if only and only.lower() not in question.title.lower():
                continue
            lines = []
            for place, reply in theirs.items():
                answer = ours.get(place, "missing")
                for path, before, now in differences(reply, answer, question.ignored):
                    is_text = path.rpartition(".")[2] in TEXTS
                    texts, found = texts + is_text, found + (not is_text)
                    lines.append(f"    node {place} {path}: Kafka {before!r}, Penstock {now!r}")
            print(f"{'differs' if lines else 'same   '}  {question.title}", *lines, sep="\n")
    return found, texts


def _penstock(stack: ExitStack, folder: Path, nodes: int) -> dict[int, int]:
    folder.mkdir(parents=True)
    servers: Mapping[int, Server]
    if nodes == 1:
        servers = {1: stack.enter_context(Server(folder / "data", kafka_port=0))}
    else:
        servers = stack.enter_context(PenstockCluster(folder, nodes=nodes)).nodes
    return {number: int(server.kafka_port or 0) for number, server in servers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_answers")
    parser.add_argument("--nodes", type=int, choices=(1, 3), help="only this number of nodes")
    parser.add_argument("--only", default="", help="print only titles with this text")
    args = parser.parse_args()
    total = 0
    for nodes in (1, 3) if args.nodes is None else (args.nodes,):
        print(f"── {nodes} node{'s' if nodes > 1 else ''}")
        with tempfile.TemporaryDirectory(prefix="answers-") as folder:
            try:
                found, texts = compare(nodes, Path(folder), only=args.only)
            except NotAvailable as error:
                sys.exit(f"Apache Kafka is not available: {error}")
        print(f"{nodes} nodes: {found} fields and {texts} texts differ")
        total += found
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
