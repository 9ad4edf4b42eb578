"""Connections to an etcd cluster. This module also decides for each error of etcd whether another
member should be tried, and whether the requested change may have happened.

``Links`` has one connection at a time. A new connection is used after the member has replied to a
read, which proves that etcd has a leader and a majority. An open connection proves little,
because the kernel accepts connections for a stopped process. A caller whose request fails reports
the member (``failed``). Then the other members are tried, beginning with the one whose last failure
is the longest ago. All callers wait for the same connection attempt.

Calls, watches and keep-alives use separate connections: a burst of watched changes must not delay
the keep-alive that keeps the node in the cluster."""

import os

# The gRPC library reads this when it is first imported. By default it writes to stderr, between the
# lines of the node's log, whenever a connection fails; the errors raised here contain the same.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# By default the library starts threads in each forked child, and aborts one child in 150 before it
# executes its program. Children of this program do nothing else.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import grpc
from grpc import aio as aio

from penstock.metadata.cache import abandon
from penstock.metadata.etcd.wire import encode_range
from penstock.metadata.store import Compacted, LeaseGone, StoreUnreachable, StoreUnusable
from penstock.model.errors import DiskFull, InvalidRequest, PenstockError, Throttled

MIB: Final = 1_048_576
# etcd sends a reply in one piece. Pages of lists and replies of watches are much smaller.
ANSWER_BYTES_MAX: Final = 64 * MIB
REQUEST_BYTES_MAX: Final = 2 * MIB  # etcd accepts 1.5 MiB
ENDPOINTS_MAX: Final = 16
PAUSE_SECONDS_MIN: Final = 0.05  # pause after all members failed
PAUSE_SECONDS_MAX: Final = 1.0
# Makes a member without a leader reject a call at once, instead of waiting for a leader.
WITH_LEADER: Final = (("hasleader", "true"),)
TEXT_CHARS_MAX: Final = 300  # length of an error text
_OWN: Final = "etcdserver: "

log = logging.getLogger(__name__)


class Failed(Exception):
    def __init__(
        self, error: PenstockError, *, is_final: bool = False, is_unknown: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error  # its text is one line
        self.is_final = is_final  # every member would reply the same
        self.is_unknown = is_unknown  # the request may have been carried out


class HistoryGone(Compacted):
    def __init__(self) -> None:
        super().__init__(1)


class AnswerTooLarge(StoreUnreachable):
    """Raised if a reply is larger than ANSWER_BYTES_MAX. A request for fewer entries may work."""


_FINAL: Final[Mapping[str, Callable[[str], PenstockError]]] = {
    "requested lease not found": lambda _text: LeaseGone(0),
    "mvcc: required revision has been compacted": lambda _text: HistoryGone(),
    "mvcc: database space exceeded": lambda _text: DiskFull("the database of etcd is full"),
    "too many requests": Throttled,
    "request is too large": InvalidRequest,
    "too many operations in txn request": InvalidRequest,
    "duplicate key given in txn request": InvalidRequest,
}
# etcd checks this before anything else, so the call has changed nothing.
_NO_LEADER: Final = "no leader"
# Codes with which every member would reject the call. The call has changed nothing.
_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.DATA_LOSS,
    }
)


def failure_of(error: aio.AioRpcError, endpoint: str) -> Failed:
    """Classify an error of the gRPC library. Errors of etcd are recognized by their texts, because
    the library uses the same status codes for lost connections."""
    details = one_line(error.details() or error.code().name)
    text = f"etcd at {endpoint}: {details}"
    if details.startswith(_OWN):
        own = details[len(_OWN) :]
        make = _FINAL.get(own)
        if make is not None:
            return Failed(make(text), is_final=True)
        if own == _NO_LEADER:
            return Failed(StoreUnreachable(text))
    elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Failed(AnswerTooLarge(text), is_final=True)
    if error.code() in _REFUSALS:
        return Failed(StoreUnusable(text), is_final=True)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"etcd at {endpoint} did not reply in time"
    return Failed(StoreUnreachable(text), is_unknown=True)


def one_line(text: str) -> str:
    return " ".join(text.split())[:TEXT_CHARS_MAX]


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    endpoints: tuple[str, ...]  # host:port of some or all members
    namespace: str = "/penstock/main"  # prefix of all keys; namespaces must not be nested
    ca_path: Path | None = None  # if set, connections are encrypted and members authenticated
    cert_path: Path | None = None  # certificate of this node, for members that authenticate clients
    key_path: Path | None = None
    # Timeout of a call. A request to a leader that dies gets no reply, so this is also the time
    # until its caller learns that the outcome is unknown.
    call_ms: int = 3_000
    connect_ms: int = 1_000  # timeout of the first read from a member
    keep_alive_ms: int = 2_000  # timeout of one keep-alive, over all members
    hedge_ms: int = 400  # after this time a keep-alive is sent to the next member as well
    pulse_ms: int = 1_000  # after this silence a watch requests a progress notification
    pulse_answer_ms: int = 2_000  # without a notification for this time, the member counts as lost


# In quotes, because the library's classes are not generic at run time.
StreamMethod: TypeAlias = "aio.StreamStreamMultiCallable[bytes, bytes]"


class Method(StrEnum):
    RANGE = "/etcdserverpb.KV/Range"
    TXN = "/etcdserverpb.KV/Txn"
    GRANT = "/etcdserverpb.Lease/LeaseGrant"
    REVOKE = "/etcdserverpb.Lease/LeaseRevoke"


class Link:
    def __init__(self, endpoint: str, channel: aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.watch: StreamMethod = channel.stream_stream("/etcdserverpb.Watch/Watch")
        self._keep_alive: StreamMethod = channel.stream_stream("/etcdserverpb.Lease/LeaseKeepAlive")
        self._methods: dict[Method, aio.UnaryUnaryMultiCallable[bytes, bytes]] = {
            method: channel.unary_unary(method.value) for method in Method
        }

    async def ask(self, method: Method, request: bytes, *, seconds: float) -> bytes:
        async with self.failing():
            return await self._methods[method](request, timeout=seconds, metadata=WITH_LEADER)

    async def keep_alive(self, request: bytes, *, seconds: float) -> bytes:
        async with self.failing():
            stream = self._keep_alive(timeout=seconds, metadata=WITH_LEADER)
            try:
                await stream.write(request)
                answer = await stream.read()
                if answer is aio.EOF:
                    raise Failed(StoreUnreachable(f"etcd at {self.endpoint} ended a call"))
                return cast(bytes, answer)
            finally:
                stream.cancel()

    @asynccontextmanager
    async def failing(self) -> AsyncIterator[None]:
        """Convert errors of the gRPC library in the ``with`` block to the exception Failed."""
        try:
            yield
        except aio.AioRpcError as error:
            raise failure_of(error, self.endpoint) from error
        except (aio.UsageError, asyncio.InvalidStateError) as error:
            # The channel was already closed, or the stream being written to has ended.
            text = f"etcd at {self.endpoint}: the connection was closed"
            raise Failed(StoreUnreachable(text)) from error
        except asyncio.CancelledError as error:
            # The library also raises this error if the channel is closed during a call.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            text = f"etcd at {self.endpoint}: the connection was closed during a call"
            raise Failed(StoreUnreachable(text), is_unknown=True) from error

    @property
    def is_connected(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.READY


def open_link(endpoint: str, config: EtcdConfig) -> Link:
    """Return a connection to an etcd member. The first call opens the connection."""
    options: list[tuple[str, Any]] = [
        ("grpc.use_local_subchannel_pool", 1),  # without it, all channels share a connection
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.max_send_message_length", REQUEST_BYTES_MAX),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.client_idle_timeout_ms", 2**31 - 1),  # never close idle connections
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", config.connect_ms),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Detects connections that are cut silently. etcd disconnects clients that ping more often
        # than every five seconds.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 3_000),
    ]
    if config.ca_path is None:
        return Link(endpoint, aio.insecure_channel(endpoint, options=options))
    # Read for each connection, because certificates are replaced while a node runs.
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_file(config.ca_path),
        private_key=_file(config.key_path),
        certificate_chain=_file(config.cert_path),
    )
    return Link(endpoint, aio.secure_channel(endpoint, credentials, options=options))


def _file(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise StoreUnusable(f"The TLS file {path} cannot be read: {error.strerror}") from error


class Links:
    def __init__(self, config: EtcdConfig, *, purpose: str, chance: Callable[[], float]) -> None:
        self.trouble: str | None = None  # why there is no connection
        self._config = config
        self._purpose = purpose
        self._loop = asyncio.get_running_loop()
        # Random, so that the nodes of a cluster do not all use the same member.
        order = sorted(config.endpoints, key=lambda _one: chance())
        self._failed_at: dict[str, float] = dict.fromkeys(order, 0.0)
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link] | None = None
        self._closing: dict[asyncio.Task[None], Link] = {}
        self._is_closed = False
        # Reads a key in the namespace that never exists; other keys may be forbidden for this node.
        self._probe = encode_range(f"{config.namespace}/".encode(), is_keys_only=True)

    async def ready(self, until: float) -> Link:
        """Return a connection to a member that replies before ``until``, or else raise an error."""
        link = self._link
        if link is not None and link.is_connected:
            return link
        if self._is_closed:
            raise StoreUnusable("The metadata store is closed.")
        if link is not None:
            self.failed(link, StoreUnreachable(f"etcd at {link.endpoint}: the connection was lost"))
        connecting = self._connecting
        if connecting is None:
            connecting = self._loop.create_task(self._connect(), name=f"etcd {self._purpose}")
            connecting.add_done_callback(self._connected)
            self._connecting = connecting
        await asyncio.wait((connecting,), timeout=max(0.0, until - self._loop.time()))
        if not connecting.done() or connecting.cancelled():
            raise StoreUnreachable(self.trouble or "etcd has not replied yet.")
        return connecting.result()

    def failed(self, link: Link, error: PenstockError) -> None:
        """Stop using a connection that has failed. Calls in progress on it may still finish."""
        if link is not self._link:
            return
        self._link = None
        self._failed_at[link.endpoint] = self._loop.time()
        self.trouble = str(error)
        log.warning(
            "etcd connection lost", extra={"purpose": self._purpose, "reason": self.trouble}
        )
        self._retire(link, grace=self._config.call_ms / 1_000)

    async def close(self) -> None:
        self._is_closed = True
        connecting, self._connecting = self._connecting, None
        await abandon(connecting)
        link, self._link = self._link, None
        if link is not None:
            self._retire(link, grace=None)
        closing = dict(self._closing)
        for task, retired in closing.items():
            await abandon(task)  # it may be waiting for calls in progress
            await retired.channel.close()

    async def _connect(self) -> Link:
        pause_seconds, seconds = PAUSE_SECONDS_MIN, self._config.connect_ms / 1_000
        while True:
            for endpoint in sorted(self._failed_at, key=self._failed_at.__getitem__):
                link = open_link(endpoint, self._config)
                try:
                    # A linearizable read: for some time after their leader has died, members still
                    # forward requests to it, which are lost.
                    await link.ask(Method.RANGE, self._probe, seconds=seconds)
                    return link
                except BaseException as error:
                    self._retire(link, grace=None)
                    if not isinstance(error, Failed):
                        raise
                    if isinstance(error.error, StoreUnusable):
                        raise error.error from error  # etcd refuses this node
                    self.trouble = str(error)
                    self._failed_at[endpoint] = self._loop.time()
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)

    def _connected(self, connecting: asyncio.Task[Link]) -> None:
        if self._connecting is connecting:
            self._connecting = None
        if connecting.cancelled() or connecting.exception() is not None:
            return  # waiting callers get the error
        link = connecting.result()
        if self._is_closed:
            self._retire(link, grace=None)
            return
        self._link = link
        if self.trouble is not None:
            log.info("connected to etcd", extra={"purpose": self._purpose, "at": link.endpoint})
        self.trouble = None

    def _retire(self, link: Link, *, grace: float | None) -> None:
        closing = self._loop.create_task(link.channel.close(grace), name="etcd connection's end")
        self._closing[closing] = link
        closing.add_done_callback(self._closing.pop)
