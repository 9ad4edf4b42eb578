"""Watches that miss no change of etcd keys, and keep-alives of leases, even if members fail.

Each watch has a separate stream and remembers its next revision. If the stream or the member is
lost, the watch continues from this revision, on any member that replies. Details of etcd matter:

- A watch that starts exactly at the compacted revision silently misses a delete of that revision.
  So a watch starts one revision earlier, where etcd reports the compaction, and skips old changes.
- A member that stops, or loses its connections to other members, just sends nothing. So after a
  short silence the watch requests a progress notification. The revision in the notification is
  ignored, because in etcd before 3.4.25 and 3.5.8 it may be ahead of changes not sent yet.
- A large reply comes in fragments, which may split the changes of one revision. So the changes of
  the last revision in a fragment are kept back until the next fragment has arrived."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Final

from penstock.metadata.cache import abandon
from penstock.metadata.etcd import wire
from penstock.metadata.etcd.links import (
    WITH_LEADER,
    EtcdConfig,
    Failed,
    Link,
    Links,
    aio,
    one_line,
    open_link,
)
from penstock.metadata.etcd.wire import Stored, WatchAnswer
from penstock.metadata.store import Compacted, LeaseGone, StoreUnreachable, StoreUnusable
from penstock.model.errors import PenstockError, Throttled
from penstock.wire.internal.faults import Unreachable

Event = tuple[bool, Stored]  # whether it is a put (else a delete), and the entry

WATCHES_MAX: Final = 1_000  # each is a stream; a node watches a dozen prefixes
RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
ROUND_SECONDS: Final = 0.1  # pause after all members have failed
_REFUSED: Final = ("permission denied", "auth token", "user name is empty")


@dataclass(eq=False, slots=True)
class _Watch:
    start: bytes
    end: bytes
    from_revision: int
    heard_at: float
    _kept_back: list[Event] = field(default_factory=list)

    def begin(self) -> bytes:
        self._kept_back.clear()
        return wire.encode_watch(self.start, self.end, from_revision=max(1, self.from_revision - 1))

    def take(self, answer: WatchAnswer) -> Sequence[Event]:
        """Process a reply, and return the changes of all revisions that are now complete."""
        events = self._kept_back + [
            event for event in answer.events if event[1].version >= self.from_revision
        ]
        if answer.is_fragment and events:
            last = events[-1][1].version
            self._kept_back = [event for event in events if event[1].version == last]
            events = events[: len(events) - len(self._kept_back)]
        elif not answer.is_fragment:
            self._kept_back = []
        if events:
            self.from_revision = events[-1][1].version + 1
        elif answer.watch_id >= 0 and not (answer.is_created or answer.is_fragment):
            self.from_revision = max(self.from_revision, answer.revision + 1)
        return events


class Watches:
    def __init__(self, config: EtcdConfig, *, chance: Callable[[], float]) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._links = Links(config, purpose="watches", chance=chance)
        self._chance = chance
        self._watches: set[_Watch] = set()
        self._closed = asyncio.Event()

    @property
    def trouble(self) -> str | None:
        return self._links.trouble if self._watches else None

    @property
    def staleness_ms(self) -> int:
        now = self._loop.time()
        return int(max((now - watch.heard_at for watch in self._watches), default=0.0) * 1_000)

    async def follow(
        self, start: bytes, end: bytes, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield changes as ``Store.watch`` does. Raises StoreUnusable if etcd denies access."""
        if len(self._watches) >= WATCHES_MAX:
            raise Throttled("Too many etcd watches are open; retry later.")
        watch = _Watch(start, end, from_revision, self._loop.time())
        self._watches.add(watch)
        retry_seconds = RETRY_SECONDS_MIN
        try:
            while not self._closed.is_set():
                try:
                    link = await self._links.ready(self._loop.time() + RETRY_SECONDS_MAX)
                    async with aclosing(self._stream(link, watch)) as stream:
                        async for events in stream:
                            retry_seconds = RETRY_SECONDS_MIN
                            yield events
                except Failed as failed:
                    if failed.is_final:
                        raise failed.error from failed
                    self._links.failed(link, failed.error)
                except Unreachable:
                    continue  # ``ready`` has waited
                except StoreUnusable:
                    if self._closed.is_set():
                        return
                    raise
                # Wait for a random time, so that nodes do not reconnect all at once.
                with suppress(TimeoutError):
                    async with asyncio.timeout(retry_seconds * (0.5 + self._chance() / 2)):
                        await self._closed.wait()
                retry_seconds = min(2 * retry_seconds, RETRY_SECONDS_MAX)
        finally:
            self._watches.discard(watch)

    async def _stream(self, link: Link, watch: _Watch) -> AsyncGenerator[Sequence[Event], None]:
        """Yield changes until ``close`` is called. Raises Failed if the stream breaks."""
        async with link.failing():
            stream = link.watch(metadata=WITH_LEADER)
            await stream.write(watch.begin())
        read: asyncio.Task[Any] | None = None
        try:
            while not self._closed.is_set():
                # Cancelling a read would cancel its stream, so the read continues across timeouts.
                read = read or self._loop.create_task(_read(link, stream), name="etcd watch")
                if not await self._is_heard(link, stream, read):
                    text = f"etcd at {link.endpoint} stopped replying on a watch"
                    raise Failed(StoreUnreachable(text))
                data, read = read.result(), None
                watch.heard_at = self._loop.time()
                answer = wire.decode_watch(data)
                if answer.is_cancelled:
                    raise _end_of(answer, link)
                events = watch.take(answer)
                if events:
                    yield events
        finally:
            stream.cancel()
            await abandon(read)

    async def _is_heard(self, link: Link, stream: Any, read: asyncio.Task[Any]) -> bool:
        """Return whether the member sends anything before a timeout. Progress is requested more
        than once, because some versions of etcd do not reply while a watch catches up."""
        pulse = self._config.pulse_ms / 1_000
        until = self._loop.time() + pulse + self._config.pulse_answer_ms / 1_000
        while True:
            done, _ = await asyncio.wait((read,), timeout=min(pulse, until - self._loop.time()))
            if done:
                return True
            left = until - self._loop.time()
            if left <= 0:
                return False
            try:
                async with link.failing(), asyncio.timeout(left):
                    await stream.write(wire.PROGRESS)
            except TimeoutError:
                return False

    async def close(self) -> None:
        self._closed.set()
        await self._links.close()


async def _read(link: Link, stream: Any) -> bytes:
    async with link.failing():
        data = await stream.read()
        if data is aio.EOF:
            raise Failed(StoreUnreachable(f"etcd at {link.endpoint} ended a watch"))
        assert isinstance(data, bytes)
        return data


def _end_of(answer: WatchAnswer, link: Link) -> PenstockError | Failed:
    if answer.compacted:
        return Compacted(answer.compacted + 1)
    text = f"etcd at {link.endpoint}: {one_line(answer.reason) or 'a watch was ended'}"
    if any(refused in text for refused in _REFUSED):
        return StoreUnusable(text)
    return Failed(StoreUnreachable(text))


class KeepAlives:
    """Keeps leases alive. A keep-alive is first sent to the member that replied last. If there is
    no reply for a while, it is also sent to the next member, and so on in a cycle; the first reply
    counts. A member may get the same request more than once: it forwards requests to the leader,
    and if the leader has died, only a later request reaches the new leader."""

    def __init__(self, config: EtcdConfig, *, chance: Callable[[], float]) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._order = sorted(config.endpoints, key=lambda _one: chance())  # the order of requests
        self._links: dict[str, Link] = {}
        self._is_closed = False

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease and return its remaining time in ms."""
        if self._is_closed:
            raise StoreUnusable("The metadata store is closed.")
        until = self._loop.time() + self._config.keep_alive_ms / 1_000
        request = wire.encode_lease(lease)
        turns = cycle(tuple(self._order))
        failure_count = 0
        pending: dict[asyncio.Task[bytes], str] = {}
        trouble: PenstockError = StoreUnreachable("etcd did not reply in time.")
        try:
            while (left := until - self._loop.time()) > 0:
                endpoint = next(turns)
                pending[self._begin(endpoint, request, left)] = endpoint
                done, _ = await asyncio.wait(
                    pending,
                    timeout=min(left, self._config.hedge_ms / 1_000),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    endpoint = pending.pop(task)
                    answer = await self._answer(task, endpoint)
                    if isinstance(answer, bytes):
                        left_ms = wire.decode_keep_alive(answer) * 1_000
                        self._order.remove(endpoint)
                        self._order.insert(0, endpoint)
                        if left_ms <= 0:
                            raise LeaseGone(lease)
                        return left_ms
                    trouble = answer
                    failure_count += 1
                    if failure_count % len(self._order) == 0:
                        await asyncio.sleep(ROUND_SECONDS)
            # A member that lags may not know a new lease: only the last reply counts.
            if isinstance(trouble, LeaseGone):
                raise LeaseGone(lease)
            raise StoreUnreachable(str(trouble))
        finally:
            await abandon(*pending)

    def _begin(self, endpoint: str, request: bytes, seconds: float) -> asyncio.Task[bytes]:
        link = self._links.get(endpoint)
        if link is None:
            link = self._links[endpoint] = open_link(endpoint, self._config)
        return self._loop.create_task(
            link.keep_alive(request, seconds=seconds), name=f"keep-alive by {endpoint}"
        )

    async def _answer(self, task: asyncio.Task[bytes], endpoint: str) -> bytes | PenstockError:
        """Return a member's reply, or an error after which other members should be tried. Raises
        errors that every member would return."""
        try:
            return task.result()
        except Failed as failed:
            # After any error the next request uses a new connection.
            link = self._links.pop(endpoint, None)
            if link is not None:
                await link.channel.close()
            if failed.is_final and not isinstance(failed.error, LeaseGone):
                raise failed.error from failed
            return failed.error

    async def close(self) -> None:
        self._is_closed = True
        for link in self._links.values():
            await link.channel.close()
        self._links.clear()
