"""A Kafka listener in a thread: real sockets and our codec, answers written by each test."""

import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any, cast

from penstock.wire.kafka.apis import APIS, encode_response_frame, parse_request_header
from penstock.wire.kafka.generated import api_versions, find_coordinator, list_groups, metadata

METADATA, FIND_COORDINATOR, LIST_GROUPS, API_VERSIONS = 3, 10, 16, 18
UNKNOWN_TOPIC = 3


class KafkaEndpoint:
    """``answers`` by API key; ``asked`` keeps (API name, version, request). Topics and groups are
    given as tables, for almost every command looks at them first. An answer that raises
    ConnectionAbortedError is never sent: its client is hung up on."""

    def __init__(self) -> None:
        self.answers: dict[int, Callable[[Any], Any]] = {
            API_VERSIONS: self._versions,
            METADATA: self._metadata,
            FIND_COORDINATOR: self._coordinator,
            LIST_GROUPS: self._groups,
        }
        self.asked: list[tuple[str, int, Any]] = []
        self.topics: dict[str, int] = {}  # name → number of partitions
        self.groups: dict[str, str] = {}  # name → classic or consumer
        self.version_max: dict[int, int] = {}  # an older server
        self._connections: list[socket.socket] = []
        endpoint = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                endpoint._connections.append(self.connection)
                while head := self.rfile.read(4):
                    frame = self.rfile.read(int.from_bytes(head, "big"))
                    try:
                        answer = endpoint._answer(frame)
                    except ConnectionAbortedError:
                        return
                    self.wfile.write(answer)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.host, self.port = cast(tuple[str, int], self._server.server_address)
        self.address = f"{self.host}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hang_up(self) -> None:
        """On all who are connected."""
        while self._connections:
            self._connections.pop().shutdown(socket.SHUT_RDWR)

    def requests(self, name: str) -> list[Any]:
        return [request for asked, _, request in self.asked if asked == name]

    def _answer(self, frame: bytes) -> bytes:
        header = parse_request_header(frame)
        api = APIS[header.api_key]
        codec = api.codec()
        request = codec.decode_request(frame, header.body_at, header.api_version)
        self.asked.append((api.name, header.api_version, request))
        reply = self.answers[header.api_key](request)
        body = codec.encode_response(reply, header.api_version)
        return encode_response_frame(api, header.api_version, header.correlation_id, body)

    def _versions(self, _: Any) -> Any:
        rows = [
            api_versions.ApiVersion(
                key, APIS[key].advertised_min, self.version_max.get(key, APIS[key].version_max)
            )
            for key in self.answers
        ]
        return api_versions.ApiVersionsResponse(api_keys=rows)

    def _metadata(self, request: metadata.MetadataRequest) -> Any:
        asked = list(self.topics) if request.topics is None else [t.name for t in request.topics]
        return metadata.MetadataResponse(
            brokers=[metadata.MetadataResponseBroker(1, self.host, self.port)],
            cluster_id="c",
            controller_id=1,
            topics=[self._topic(name or "") for name in asked],
        )

    def _topic(self, name: str) -> metadata.MetadataResponseTopic:
        if name not in self.topics:
            return metadata.MetadataResponseTopic(error_code=UNKNOWN_TOPIC, name=name)
        return metadata.MetadataResponseTopic(
            name=name,
            topic_id=b"\x07" * 16,
            is_internal=name.startswith("__"),
            partitions=[
                metadata.MetadataResponsePartition(0, number, 1, 0, [1], [1])
                for number in range(self.topics[name])
            ],
        )

    def _coordinator(self, _: Any) -> Any:
        return find_coordinator.FindCoordinatorResponse(
            node_id=1, host=self.host, port=self.port, error_message=None
        )

    def _groups(self, _: Any) -> Any:
        rows = [
            list_groups.ListedGroup(name, "consumer", "Empty", kind)
            for name, kind in self.groups.items()
        ]
        return list_groups.ListGroupsResponse(groups=rows)
