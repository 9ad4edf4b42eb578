"""Sends questions to the nodes of one system."""

import itertools
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from benchmarks.answers.question import (
    COORDINATOR,
    EVERY,
    LEADER,
    TRANSACTION,
    UNION,
    Hmac,
    Id,
    Question,
)
from benchmarks.server import NotAvailable
from penstock.wire.kafka.apis import (
    APIS,
    FETCH,
    PRODUCE,
    Api,
    encode_request_frame,
    parse_response_header,
)

ASK_S_MAX: Final = 30.0
SETTLE_S_MAX: Final = 10.0
# No leader, leader moved, coordinator loading, not available, moved.
RETRIABLE: Final = (5, 6, 14, 15, 16)
NAMES: Final = {api.name: api for api in APIS.values()}
Logins = Mapping[str, tuple[str, str]]  # by user: name and password; empty: nobody logs in


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
        asked: list[int | None] = [None]  # the leader or coordinator
        if question.at in (EVERY, UNION):
            asked = list(self.ports)
        elif isinstance(question.at, int):
            asked = [question.at]
        found = {number: self._settled(node, question) for number, node in enumerate(asked, 1)}
        return {1: _joined(list(found.values()))} if question.at == UNION else found

    def _settled(self, node: int | None, question: Question) -> Any:
        """Ask again while the system is busy with what was asked before, or leaders move."""
        until = time.monotonic() + SETTLE_S_MAX
        while True:
            at = self._find(question) if node is None else node
            reply = self.ask(at, question.api, question.version, question.fields, question.by)
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
                assert question.at in (COORDINATOR, TRANSACTION)
                kind = int(question.at == TRANSACTION)
                asked = {"key_type": kind, "coordinator_keys": [question.of]}
                (one,) = self.ask(first, "FindCoordinator", 4, asked)["coordinators"]
                if one["error_code"] == 0:
                    return int(one["node_id"])
            time.sleep(0.2)
        raise NotAvailable(f"no {question.at} of {question.of}")


def _joined(replies: list[Any]) -> Any:
    """One reply with the entries of all."""
    first = replies[0]
    if not all(isinstance(reply, dict) for reply in replies):
        return first
    return {
        name: [one for reply in replies for one in reply[name]]
        if isinstance(value, list | tuple)
        else value
        for name, value in first.items()
    }


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
