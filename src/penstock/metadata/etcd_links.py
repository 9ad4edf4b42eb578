"""Ways to the members of an etcd cluster: one connection at a time, to whichever member answers.

A member counts as there when it has answered a read, for which it needs a leader and that one a
majority; a connection alone says little, for the kernel of a stopped process still takes them.
Whoever finds a member wanting says so (``failed``), and the next one is looked for, those that
failed longest ago first. All who wait for a connection wait for the same one.

Calls, watches and keep-alives each have ``Links`` of their own, and therefore connections of their
own: a burst of changes for the watches must not hold up the keep-alive that keeps the node in.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from penstock.metadata.etcd_faults import Fault, fault_of
from penstock.metadata.etcd_grpc import ChannelConnectivity, aio, ssl_channel_credentials
from penstock.metadata.etcd_wire import encode_range
from penstock.metadata.store import StoreUnreachable, StoreUnusable
from penstock.model.errors import PenstockError

MIB: Final = 1_048_576
# etcd sends what was asked for in one piece; a page of a list, and a watch's answer, fit several
# times.
ANSWER_BYTES_MAX: Final = 64 * MIB
REQUEST_BYTES_MAX: Final = 2 * MIB  # etcd takes 1.5
ENDPOINTS_MAX: Final = 16
PAUSE_SECONDS_MIN: Final = 0.05  # after all members were asked in vain
PAUSE_SECONDS_MAX: Final = 1.0
# A member that has lost its leader refuses these at once, instead of answering when it has one.
WITH_LEADER: Final = (("hasleader", "true"),)

LIBRARY_ERRORS: Final = (
    aio.AioRpcError,
    aio.UsageError,
    asyncio.InvalidStateError,
    asyncio.CancelledError,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    endpoints: tuple[str, ...]  # host:port of the members, some or all
    namespace: str = "/penstock/main"  # before every key; none may lie within another's
    ca_path: Path | None = None  # with it connections are encrypted, and members proven
    cert_path: Path | None = None  # this node's own, for members that want to know who asks
    key_path: Path | None = None
    # For any call. What is on its way to a leader that dies is not answered at all, so this is also
    # how long its caller waits to hear that nobody knows.
    call_ms: int = 3_000
    connect_ms: int = 1_000  # for a member to say that it is there
    keep_alive_ms: int = 2_000  # for one keep-alive, on whatever member
    hedge_ms: int = 400  # then a keep-alive is tried on the next member as well
    pulse_ms: int = 1_000  # after so long without a word a watch asks whether anybody is there
    pulse_answer_ms: int = 2_000  # and after so long without an answer nobody is


# In quotes: the library's classes take no arguments when the program runs.
StreamMethod: TypeAlias = "aio.StreamStreamMultiCallable[bytes, bytes]"


class Method(StrEnum):
    RANGE = "/etcdserverpb.KV/Range"
    TXN = "/etcdserverpb.KV/Txn"
    GRANT = "/etcdserverpb.Lease/LeaseGrant"
    REVOKE = "/etcdserverpb.Lease/LeaseRevoke"


class Failed(Exception):
    """A call that has no answer."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault.error))
        self.fault = fault


class Link:
    """A connection to one member."""

    def __init__(self, endpoint: str, channel: aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.watch: StreamMethod = channel.stream_stream("/etcdserverpb.Watch/Watch")
        self._keep_alive: StreamMethod = channel.stream_stream("/etcdserverpb.Lease/LeaseKeepAlive")
        self._methods: dict[Method, aio.UnaryUnaryMultiCallable[bytes, bytes]] = {
            method: channel.unary_unary(method.value) for method in Method
        }

    async def ask(self, method: Method, request: bytes, *, seconds: float) -> bytes:
        """Raises Failed."""
        try:
            return await self._methods[method](request, timeout=seconds, metadata=WITH_LEADER)
        except LIBRARY_ERRORS as error:
            failed = self._failed(error)
            if failed is None:
                raise
            raise failed from error

    async def keep_alive(self, request: bytes, *, seconds: float) -> bytes:
        """A stream for one question: what has to be kept alive is asked for seldom, and so there is
        nothing to be kept over the end of a connection. Raises Failed."""
        async with self.failing():
            stream = self._keep_alive(timeout=seconds, metadata=WITH_LEADER)
            try:
                await stream.write(request)
                answer = await stream.read()
                if answer is aio.EOF:
                    raise Failed(Fault(StoreUnreachable(f"etcd at {self.endpoint} hung up")))
                return cast(bytes, answer)
            finally:
                stream.cancel()

    @asynccontextmanager
    async def failing(self) -> AsyncIterator[None]:
        """What the library raises, as Failed."""
        try:
            yield
        except LIBRARY_ERRORS as error:
            failed = self._failed(error)
            if failed is None:
                raise
            raise failed from error

    def _failed(self, error: BaseException) -> Failed | None:
        """None: it is the caller that is cancelled."""
        if isinstance(error, aio.AioRpcError):
            return Failed(fault_of(error, self.endpoint))
        # The channel was closed before, or the stream that is written to has ended.
        if isinstance(error, aio.UsageError | asyncio.InvalidStateError):
            return Failed(Fault(StoreUnreachable(f"etcd at {self.endpoint}: given up")))
        # The library says so, too, when the channel is closed under a call.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return None
        text = f"etcd at {self.endpoint}: given up during a call"
        return Failed(Fault(StoreUnreachable(text), is_unknown=True))

    @property
    def is_connected(self) -> bool:
        return self.channel.get_state() is ChannelConnectivity.READY


def open_link(endpoint: str, config: EtcdConfig) -> Link:
    """Nothing is sent before the first call. Raises StoreUnusable."""
    options: list[tuple[str, Any]] = [
        ("grpc.use_local_subchannel_pool", 1),  # or all channels to a member share a connection
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.max_send_message_length", REQUEST_BYTES_MAX),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.client_idle_timeout_ms", 2**31 - 1),  # a quiet connection is not a lost one
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", config.connect_ms),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Below the calls, for a connection that is cut without a word. etcd hangs up on those who
        # ping every five seconds.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 3_000),
    ]
    if config.ca_path is None:
        return Link(endpoint, aio.insecure_channel(endpoint, options=options))
    # Read anew for each connection: certificates are replaced while a node runs.
    credentials = ssl_channel_credentials(
        root_certificates=_file(config.ca_path),
        private_key=_file(config.key_path),
        certificate_chain=_file(config.cert_path),
    )
    return Link(endpoint, aio.secure_channel(endpoint, credentials, options=options))


async def abandon(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Ends tasks whose outcome nobody asks for any more, also if it is an error by now."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)


def _file(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise StoreUnusable(f"{path}: cannot be read: {error.strerror}") from error


class Links:
    def __init__(self, config: EtcdConfig, *, purpose: str, chance: Callable[[], float]) -> None:
        self.trouble: str | None = None  # why there is no connection
        self._config = config
        self._purpose = purpose
        self._loop = asyncio.get_running_loop()
        # Drawn once, so that the nodes of a cluster do not all ask the same member.
        order = sorted(config.endpoints, key=lambda _one: chance())
        self._failed_at: dict[str, float] = dict.fromkeys(order, 0.0)
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link] | None = None
        self._closing: dict[asyncio.Task[None], Link] = {}
        self._is_closed = False
        # A key that is never there, below the namespace: nobody may be allowed to read more.
        self._probe = encode_range(f"{config.namespace}/".encode(), is_keys_only=True)

    async def ready(self, until: float) -> Link:
        """A connection to a member that answers. Raises Unreachable when there is none at that
        time of the loop's clock: then nothing was sent to anybody."""
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
            raise StoreUnreachable(self.trouble or "etcd has not answered yet.")
        return connecting.result()

    def failed(self, link: Link, error: PenstockError) -> None:
        """It is not used any more. What is under way on it may finish: it may be answered yet."""
        if link is not self._link:
            return
        self._link = None
        self._failed_at[link.endpoint] = self._loop.time()
        self.trouble = str(error)
        log.warning("etcd member lost", extra={"purpose": self._purpose, "why": self.trouble})
        self._retire(link, grace=self._config.call_ms / 1_000)

    async def close(self) -> None:
        self._is_closed = True
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait((connecting,))
        link, self._link = self._link, None
        if link is not None:
            self._retire(link, grace=None)
        closing = dict(self._closing)
        for task, retired in closing.items():
            task.cancel()  # it waits for calls under way, perhaps
            await asyncio.wait((task,))
            await retired.channel.close()

    async def _connect(self) -> Link:
        pause_seconds = PAUSE_SECONDS_MIN
        while True:
            for endpoint in sorted(self._failed_at, key=self._failed_at.__getitem__):
                link = open_link(endpoint, self._config)
                try:
                    trouble = await self._look(link)
                except BaseException:
                    self._retire(link, grace=None)
                    raise
                if trouble is None:
                    return link
                self.trouble = trouble
                self._failed_at[endpoint] = self._loop.time()
                self._retire(link, grace=None)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)

    async def _look(self, link: Link) -> str | None:
        """What is wrong with a member, if anything. A read that is up to date: for some time after
        their leader has died the others believe in it, and lose what they pass on to it. Raises
        StoreUnusable if etcd refuses this node."""
        seconds = self._config.connect_ms / 1_000
        try:
            await link.ask(Method.RANGE, self._probe, seconds=seconds)
        except Failed as failed:
            if isinstance(failed.fault.error, StoreUnusable):
                raise failed.fault.error from failed
            return str(failed)
        return None

    def _connected(self, connecting: asyncio.Task[Link]) -> None:
        if self._connecting is connecting:
            self._connecting = None
        if connecting.cancelled() or connecting.exception() is not None:
            return  # whoever waits for it is told
        link = connecting.result()
        if self._is_closed:
            self._retire(link, grace=None)
            return
        self._link = link
        if self.trouble is not None:
            log.info("etcd member found", extra={"purpose": self._purpose, "at": link.endpoint})
        self.trouble = None

    def _retire(self, link: Link, *, grace: float | None) -> None:
        closing = self._loop.create_task(link.channel.close(grace), name="etcd connection's end")
        self._closing[closing] = link
        closing.add_done_callback(self._closing.pop)
