"""The part of a connection between two nodes that both ends share: hello, frames and limits.

All frames of one iteration of the event loop are sent in one write, because the system call would
be the largest cost of a call. If a peer does not read, no more calls are sent once the write buffer
exceeds ``write_bytes_high``. If that lasts or the buffer grows further, the connection is closed.

One timer checks the deadlines of all calls in progress, because a timer per call would make calls
ten percent more expensive. So a deadline is noticed up to TICK_SECONDS late. Idle connections have
no timer.

Both ends require a certificate signed by the cluster's own authority. This proves only that the
peer belongs to the cluster, so the certificate must also contain the id of the node: as a DNS name
or URI among the alternative names, or as the common name."""

import asyncio
import secrets
import ssl
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec

from penstock.model.levels import LEVEL_FIRST, Levels
from penstock.model.limits import MIB
from penstock.net.frames import Chunks, FrameReader, FrameRejected
from penstock.net.listener import Peer, write_large
from penstock.net.tls import Certificates, CertificateUnusable, TlsFiles
from penstock.wire.internal import frame as wire
from penstock.wire.internal.faults import HelloRefused, MalformedFrame, encode_failure
from penstock.wire.internal.frame import Header, Hello, Kind, Side

NO_LEVELS = Levels(LEVEL_FIRST, LEVEL_FIRST)  # for a process that is not a node of a cluster
TICK_SECONDS = 0.05
JOINED_BYTES_MAX = 262_144  # up to this size one copy is cheaper than several writes

Certificate = Mapping[str, Any]  # as returned by ``ssl.SSLSocket.getpeercert``


def names_in(certificate: Certificate) -> frozenset[str]:
    subject = (pair for group in certificate.get("subject", ()) for pair in group)
    names = {value for kind, value in subject if kind == "commonName"}
    names.update(
        value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")
    )
    return frozenset(names)


def name_in_certificate(node_id: str, certificate: Certificate | None) -> None:
    if not certificate:
        raise HelloRefused(f"Node {node_id} showed no certificate.")
    if node_id not in names_in(certificate):
        raise HelloRefused(f"The certificate shown by node {node_id} is for another node.")


class NodeCertificates(Certificates):
    def __init__(self, certificate: Path, key: Path, ca: Path) -> None:
        super().__init__(TlsFiles(certificate, key, ca))
        self.listening = self.context
        self.calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.calling.check_hostname = False  # a node is identified by its id
        for context in (self.listening, self.calling):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._load_calling(certificate, key, ca)

    def renew(self) -> bool:
        is_changed = super().renew()
        if is_changed:
            self._load_calling(*self._files)
        return is_changed

    def _load_calling(self, certificate: Path, key: Path, ca: Path | None) -> None:
        try:
            self.calling.load_cert_chain(certificate, key)
            self.calling.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            what = f"{certificate}, {key} and {ca} cannot be used"
            raise CertificateUnusable(what, str(error)) from error


@dataclass(frozen=True, slots=True)
class InternalConfig:
    frame_bytes_max: int = wire.FRAME_BYTES_MAX
    in_flight_max: int = 1_024  # calls in progress on one connection
    waiting_max: int = 10_000  # further calls that wait for room; more are rejected
    connections_max: int = 4_096
    write_bytes_high: int = MIB  # more unsent bytes: no new calls until there are fewer
    unsent_bytes_max: int = 2 * wire.FRAME_BYTES_MAX  # more unsent bytes: the connection is closed
    write_stall_seconds_max: float = 10.0
    hello_seconds_max: float = 5.0  # for the hello of a caller, TLS included
    connect_seconds_max: float = 2.0  # for a caller to connect and get the hello of the other node
    frame_seconds_max: float = 30.0  # from a frame's first byte to its last
    ping_seconds: float = 5.0  # without a byte from the peer, then the caller sends a ping
    silence_seconds_max: float = 20.0  # without a byte from the peer, then the connection is closed
    retry_seconds_min: float = 0.05  # between attempts to connect, growing twofold
    retry_seconds_max: float = 5.0


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """The settings of this node for its connections to other nodes. ``check_hello`` raises
    HelloRefused for an unsuitable peer. If ``secret`` is set, both ends must prove it."""

    node_id: str
    cluster_id: str
    features: tuple[str, ...] = ()
    levels: Levels = NO_LEVELS
    config: InternalConfig = InternalConfig()
    check_hello: Callable[[Hello], None] = lambda _hello: None
    secret: bytes | None = None

    def hello(self) -> Hello:
        return Hello(
            version_min=wire.VERSION_MIN,
            version_max=wire.VERSION_MAX,
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            features=self.features,
            frame_bytes_max=self.config.frame_bytes_max,
            in_flight_max=self.config.in_flight_max,
            level_min=self.levels.lowest,
            level_max=self.levels.highest,
            nonce=b"" if self.secret is None else secrets.token_bytes(wire.NONCE_BYTES),
        )


class NodeConnection(Peer, asyncio.BufferedProtocol):
    side: ClassVar[Side]

    def __init__(self, end: NodeEnd, chunks: Chunks) -> None:
        self.other: Hello | None = None  # the accepted hello of the other node
        self.end_reason: str | None = None  # set if this node ends the connection
        self._end = end
        self._own = end.hello()
        self._first: Hello | None = None  # the peer's first hello, if two are exchanged
        self._config = end.config
        self._chunks = chunks
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(chunks, frame_bytes_max=wire.HEADER_BYTES + wire.HELLO_BYTES_MAX)
        self._heard_at = self._opened_at = self._loop.time()
        self._part_since: float | None = None  # when an incomplete frame began to arrive
        self._version = wire.VERSION_OF_HELLO
        self._payload_bytes_max = 0  # the limit of the peer
        self._parts: list[bytes] = []  # sent in the next iteration of the event loop
        self._parts_bytes = 0
        self._is_flush_due = False
        self._stalled_since: float | None = None
        self._tick: asyncio.TimerHandle | None = None

    # ── Implemented by each end ──────────────────────────────────────────────────────────────

    @abstractmethod
    def greeted(self, hello: Hello) -> None: ...

    @abstractmethod
    def arrived(self, header: Header, payload: memoryview) -> None:
        """Handle a frame. The payload is valid until this method returns."""

    @abstractmethod
    def expire(self, now: float) -> bool:
        """Fail the calls whose deadline has passed. Return whether any calls remain in progress."""

    @abstractmethod
    def lost(self, reason: str) -> None: ...

    # ── Receiving ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._config.write_bytes_high)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.close()
        self._parts.clear()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self.lost(self.end_reason or str(exc or "the other node closed the connection"))

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, count: int) -> None:
        self._heard_at = self._loop.time()
        reader = self._reader
        reader.received(count)
        try:
            if self.other is None:
                self._read_hello(reader)
                return
            frames = 0
            while (frame := reader.next_frame()) is not None:
                frames += 1
                header = wire.read_header(frame)
                if header.version != self._version:
                    raise MalformedFrame(f"the frame has the unexpected version {header.version}")
                self.arrived(header, frame[wire.HEADER_BYTES :])
        except (FrameRejected, MalformedFrame, HelloRefused) as error:
            self.end(str(error))
            reader.close()
            return
        reader.settle()
        if not reader.part_bytes:
            self._part_since = None
        elif frames or self._part_since is None:
            self._part_since = self._heard_at

    def _read_hello(self, reader: FrameReader) -> None:
        frame = reader.next_frame()
        if frame is None:
            reader.settle()
            return
        hello = self.read_first(frame)
        reader.settle()
        if reader.part_bytes:
            raise MalformedFrame("the peer sent frames before the reply to its hello")
        try:
            if self._transport.get_extra_info("ssl_object") is not None:
                name_in_certificate(hello.node_id, self._transport.get_extra_info("peercert"))
            self._version = wire.agree(self._own, hello)
            if self._end.secret is not None and not self._has_proved(hello, self._end.secret):
                return
            self._end.check_hello(hello)
        except HelloRefused as error:
            self.refuse(error)
            raise
        reader.close()
        self._reader = FrameReader(self._chunks, frame_bytes_max=self._config.frame_bytes_max)
        self._payload_bytes_max = hello.frame_bytes_max - wire.HEADER_BYTES
        self.other = hello
        self.greeted(hello)

    def read_first(self, frame: memoryview) -> Hello:
        return wire.decode_hello(frame)

    def _has_proved(self, hello: Hello, secret: bytes) -> bool:
        """Check a hello, and return whether the peer has now proved that it knows the secret. This
        takes two hellos; the first is answered with this node's proof. Raises HelloRefused if the
        peer's proof is wrong."""
        is_caller, first = self.side is Side.CALLER, self._first
        if first is not None and msgspec.structs.replace(hello, proof=b"") != first:
            raise HelloRefused(f"The second hello of node {hello.node_id} differs from its first.")
        caller, answerer = (self._own, hello) if is_caller else (hello, self._own)
        address = self._transport.get_extra_info("peername" if is_caller else "sockname")
        port = int(address[1])
        if is_caller == (first is None):  # the called node proves the secret first
            other = Side.ANSWERER if is_caller else Side.CALLER
            wire.check_proof(secret, other, caller=caller, answerer=answerer, port=port)
        if first is not None:
            return True
        if len(hello.nonce) != wire.NONCE_BYTES:
            raise HelloRefused(
                f"The hello of node {hello.node_id} has no nonce; the workers of this server accept"
                " only processes that prove their shared secret."
            )
        self._first = msgspec.structs.replace(hello, proof=b"")
        proof = wire.prove(secret, self.side, caller=caller, answerer=answerer, port=port)
        self._transport.write(wire.encode_hello(msgspec.structs.replace(self._own, proof=proof)))
        return False

    def refuse(self, error: HelloRefused) -> None:
        payload = encode_failure(error)
        header = wire.pack_header(wire.VERSION_OF_HELLO, Kind.ERROR, 0, 0, 0, len(payload))
        self._transport.write(header + payload)

    # ── Sending ──────────────────────────────────────────────────────────────────────────────

    def send_hello(self) -> None:
        self._transport.write(wire.encode_hello(self._own))

    def send(
        self, kind: Kind, call: int, request_id: int, payload: bytes, *, deadline_ms: int = 0
    ) -> None:
        """Send a frame in the next iteration of the event loop. The payload must pass ``fits``."""
        left_ms = min(deadline_ms, wire.DEADLINE_MS_MAX)
        header = wire.pack_header(self._version, kind, call, request_id, left_ms, len(payload))
        self._parts.append(header)
        if payload:
            self._parts.append(payload)
        self._parts_bytes += len(header) + len(payload)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        if self._parts_bytes > self._config.write_bytes_high:
            unsent = self._parts_bytes + self._transport.get_write_buffer_size()
            if unsent > self._config.unsent_bytes_max:
                self.end("the peer does not read what this node sends")

    def fits(self, payload: bytes) -> bool:
        return len(payload) <= self._payload_bytes_max

    def _flush(self) -> None:
        self._is_flush_due = False
        parts, size = self._parts, self._parts_bytes
        self._parts, self._parts_bytes = [], 0
        if not parts or self._transport.is_closing():
            return
        if size <= JOINED_BYTES_MAX:
            self._transport.write(b"".join(parts))
        else:
            write_large(self._transport, parts)
        self.flushed()

    def flushed(self) -> None: ...

    def pause_writing(self) -> None:
        self._stalled_since = self._loop.time()

    def resume_writing(self) -> None:
        self._stalled_since = None

    # ── Deadlines ────────────────────────────────────────────────────────────────────────────

    def arm(self) -> None:
        if self._tick is None:
            self._tick = self._loop.call_later(TICK_SECONDS, self._ticked)

    def _ticked(self) -> None:
        self._tick = None
        if self.expire(self._loop.time()):
            self.arm()

    def check_deadline(self, now: float) -> None:
        config = self._config
        if self.other is None:
            if now - self._opened_at > config.hello_seconds_max:
                self.end("the peer sent no hello in time")
        elif (
            self._stalled_since is not None
            and now - self._stalled_since > config.write_stall_seconds_max
        ):
            self.end("the peer does not read what this node sends")
        elif self._part_since is not None and now - self._part_since > config.frame_seconds_max:
            self.end("the peer sends a frame too slowly")
        elif now - self._heard_at > config.silence_seconds_max:
            self.end("the peer has sent nothing for too long")

    # ── Ending ───────────────────────────────────────────────────────────────────────────────

    @property
    def is_ending(self) -> bool:
        return self._transport.is_closing()

    def end(self, reason: str) -> None:
        if self.end_reason is None:
            self.end_reason = reason
        if not self._transport.is_closing():
            if self.other is None:
                self._transport.close()  # after sending why the hello was rejected
            else:
                self._transport.abort()

    def abort(self) -> None:
        self.end("this node is stopping")
