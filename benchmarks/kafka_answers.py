"""``python -m benchmarks.kafka_answers``: the same requests to Apache Kafka 4.3 and to Penstock, on
one node and on three. Prints every difference between the replies; five minutes.

The requests are in ``kafka_questions.py``; those about access rules and delegation tokens, which
both systems get with authentication on, are in ``kafka_access_questions.py``. Replies are compared
field by field, without what must differ: ids, addresses, times, and the order of lists that have
none. Texts for people are compared too, and counted apart. Differences that stay are in
docs/kafka.md with their reasons."""

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
from tests.attacks.kit import ROOT, Operator
from tests.harness.cluster import PenstockCluster
from tests.harness.server import Server

from benchmarks.apache_cluster import ApacheCluster
from benchmarks.kafka_access_questions import access_questions
from benchmarks.kafka_questions import COORDINATOR, EVERY, LEADER, Hmac, Id, Question, questions
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
    *("partition_id", "node_id", "broker_id", "group_id", "user", "key", "entity_type"),
)
# How long nodes may take to know a change, with authentication on.
LAG_S_MAX: Final = 5.0
READS: Final = frozenset(
    ("Metadata", "DescribeAcls", "DescribeCluster", "DescribeGroups", "DescribeDelegationToken")
)
TOKENS_S: Final = 2.0  # until the nodes of both systems know a change of a token
_SECRETS: Final = {"root": "root-secret", "ann": "ann-secret"}
# Kafka with users root and ann, rules and tokens.
SECURED: Final = f"""listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.plaintext.scram-sha-512.sasl.jaas.config=\\
 org.apache.kafka.common.security.scram.ScramLoginModule required;
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.plaintext.plain.sasl.jaas.config=\
 org.apache.kafka.common.security.plain.PlainLoginModule required username="root"\
 password="{_SECRETS["root"]}" user_root="{_SECRETS["root"]}" user_ann="{_SECRETS["ann"]}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:root;User:ANONYMOUS
delegation.token.secret.key=secret
"""
Logins = Mapping[str, tuple[str, str]]  # by user: name and password; empty: nobody logs in
# Of access rules and their resources.
RULE_KEYS: Final = (
    *("resource_type", "resource_name", "pattern_type"),
    *("principal", "operation", "permission_type"),
)


class Client:
    """Asks the nodes of one system."""

    def __init__(self, ports: Mapping[int, int], logins: Logins) -> None:
        self.ports = ports
        self._logins = logins
        self._sockets: dict[tuple[int, str], socket.socket] = {}
        self._numbers = itertools.count(1)
        self._hmacs: list[bytes] = []

    def ask(
        self, node: int, name: str, version: int, fields: Mapping[str, Any], by: str = "root"
    ) -> Any:
        """Return the reply as plain values, or a text that says why there is none."""
        api = NAMES.get(name)
        if api is None:
            return "Penstock has no such API"
        try:
            reply = self._ask(node, api, version, fields, by)
        except (OSError, EOFError) as error:
            self._sockets.pop((node, by)).close()
            return f"the connection ended ({type(error).__name__})"
        if name == "CreateDelegationToken" and reply["hmac"]:
            self._hmacs.append(reply["hmac"])
        return reply

    def _log_in(self, node: int, by: str) -> None:
        handshake = self.ask(node, "SaslHandshake", 1, {"mechanism": "PLAIN"}, by)
        token = "\0".join(("", *self._logins[by])).encode()
        reply = self.ask(node, "SaslAuthenticate", 2, {"auth_bytes": token}, by)
        assert handshake["error_code"] == reply["error_code"] == 0, (handshake, reply)

    def _ask(self, node: int, api: Api, version: int, fields: Mapping[str, Any], by: str) -> Any:
        codec, package = api.codec(), "" if api.key in (PRODUCE, FETCH) else "generated."
        module = import_module(f"penstock.wire.kafka.{package}{api.snake}")
        kind = getattr(module, f"{api.name}Request")
        request = built(kind, self._resolve(node, fields))
        body = codec.encode_request(request, version)
        number = next(self._numbers)
        frame = encode_request_frame(
            api, version, correlation_id=number, client_id="answers", body=body
        )
        connection = self._sockets.get((node, by))
        if connection is None:
            address = ("127.0.0.1", self.ports[node])
            connection = socket.create_connection(address, ASK_S_MAX)
            self._sockets[node, by] = connection
            if self._logins:
                self._log_in(node, by)
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
        if isinstance(value, Hmac):
            return self._hmacs[value.token]
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
            reply = self.ask(node, question.api, question.version, question.fields, question.by)
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
    return {_label(number, item): item for number, item in enumerate(reply)}


def _label(number: int, item: Mapping[str, Any]) -> Any:
    rule = tuple((key, item[key]) for key in RULE_KEYS if key in item)
    if rule:
        return rule
    name = next((item[key] for key in KEYS if item.get(key) not in ("", None)), number)
    return f"{name} ({item['source']})" if "source" in item else name


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | tuple) else value


def compare(nodes: int, folder: Path, *, only: str, is_auth_on: bool) -> tuple[int, int]:
    """Return how many fields differ, and how many texts."""
    found = texts = 0
    with ExitStack() as stack:
        kafka = _apache(stack, folder / "apache", nodes, is_auth_on=is_auth_on)
        penstock = _penstock(stack, folder / "penstock", nodes, is_auth_on=is_auth_on)
        for question in access_questions() if is_auth_on else questions(nodes):
            differing = _differing(kafka, penstock, question, is_auth_on=is_auth_on)
            if only and only.lower() not in question.title.lower():
                continue
            lines = []
            for place, path, before, now in differing:
                is_text = path.rpartition(".")[2] in TEXTS
                texts, found = texts + is_text, found + (not is_text)
                lines.append(f"    node {place} {path}: Kafka {before!r}, Penstock {now!r}")
            print(f"{'differs' if lines else 'same   '}  {question.title}", *lines, sep="\n")
    return found, texts


def _differing(
    kafka: Client, penstock: Client, question: Question, *, is_auth_on: bool
) -> list[tuple[int, str, Any, Any]]:
    """Node, path and both values. With authentication on, nodes may be behind for a while."""
    if question.api in ("RenewDelegationToken", "ExpireDelegationToken"):
        time.sleep(TOKENS_S)
    until = time.monotonic() + LAG_S_MAX
    while True:
        theirs, ours = (system.replies(question) for system in (kafka, penstock))
        found = [
            (place, *difference)
            for place, reply in theirs.items()
            for difference in differences(reply, ours.get(place, "missing"), question.ignored)
        ]
        is_read = is_auth_on and question.api in READS
        if not found or not is_read or time.monotonic() > until:
            return found
        time.sleep(0.2)


def _apache(stack: ExitStack, folder: Path, nodes: int, *, is_auth_on: bool) -> Client:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login |= {"sasl.username": "root", "sasl.password": _SECRETS["root"]}
    apache = ApacheCluster(folder, nodes=nodes)
    if is_auth_on:
        apache = ApacheCluster(folder, nodes=nodes, config=SECURED, login=login)
    stack.enter_context(apache)
    logins = {name: (name, secret) for name, secret in _SECRETS.items()} if is_auth_on else {}
    return _closed(stack, Client(dict(enumerate(apache.ports, 1)), logins))


def _penstock(stack: ExitStack, folder: Path, nodes: int, *, is_auth_on: bool) -> Client:
    folder.mkdir(parents=True)
    env = {}
    if is_auth_on:
        secret = folder / "secret"
        secret.write_text(str(ROOT.secret_key))
        secret.chmod(0o600)
        env = {"PENSTOCK_AUTH__MODE": "on", "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key)}
        env["PENSTOCK_ROOT_SECRET_FILE"] = str(secret)
    servers: Mapping[int, Server]
    if nodes == 1:
        servers = {1: stack.enter_context(Server(folder / "data", kafka_port=0, env=env))}
    else:
        servers = stack.enter_context(PenstockCluster(folder, nodes=nodes, env=env)).nodes
    logins = {}
    if is_auth_on:
        operator = Operator(servers[1])
        operator.ask("POST", "users", {"name": "ann"})
        key = operator.ask("POST", "keys", {"user": "ann"})
        logins = {"root": (str(ROOT.access_key), str(ROOT.secret_key))}
        logins["ann"] = (key["key_id"], key["secret"])
    ports = {number: int(server.kafka_port or 0) for number, server in servers.items()}
    return _closed(stack, Client(ports, logins))


def _closed(stack: ExitStack, client: Client) -> Client:
    stack.callback(client.close)
    return client


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_answers")
    parser.add_argument("--nodes", type=int, choices=(1, 3), help="only this number of nodes")
    parser.add_argument("--auth", choices=("on", "off"), help="only with authentication on or off")
    parser.add_argument("--only", default="", help="print only titles with this text")
    args = parser.parse_args()
    total = 0
    counts = (1, 3) if args.nodes is None else (args.nodes,)
    modes = ("off", "on") if args.auth is None else (args.auth,)
    for nodes, mode in itertools.product(counts, modes):
        print(f"── {nodes} node{'s' if nodes > 1 else ''}, authentication {mode}")
        with tempfile.TemporaryDirectory(prefix="answers-") as folder:
            is_auth_on = mode == "on"
            try:
                found, texts = compare(nodes, Path(folder), only=args.only, is_auth_on=is_auth_on)
            except NotAvailable as error:
                sys.exit(f"Apache Kafka is not available: {error}")
        print(f"{nodes} nodes: {found} fields and {texts} texts differ")
        total += found
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
