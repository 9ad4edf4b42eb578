"""Watches of etcd keys that survive the loss of members, without a gap.

Each watch has a separate stream and remembers its next revision; when the stream or the member is
lost, the watch restarts there, on any member that replies. Three properties of etcd matter:

- A watch may start exactly where history was compacted, and then silently misses a delete of that
  revision. So a watch starts one revision early and skips older changes: then etcd reports the
  compaction.
- A member that stops, or is cut off from the others, just becomes silent. So after a short silence
  the stream is asked for a progress notification. Its revision is ignored: etcd before 3.4.25 and
  3.5.8 may send one that is ahead of changes not sent yet. Periodic notifications of a watch are in
  order with its changes, and are used.
- A large reply comes in fragments, which may split a revision: the last revision of a fragment is
  kept back until the rest has arrived.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from penstock.metadata.etcd.links import (
    WITH_LEADER,
    EtcdConfig,
    Failed,
    Fault,
    Link,
    Links,
    abandon,
    aio,
    one_line,
)
from penstock.metadata.etcd.wire import PROGRESS, Stored, WatchAnswer, decode_watch, encode_watch
from penstock.metadata.store import Compacted, StoreUnreachable, StoreUnusable
from penstock.model.errors import PenstockError, Throttled
from penstock.wire.internal.faults import Unreachable

Event = tuple[bool, Stored]  # True: a put

WATCHES_MAX: Final = 1_000  # each is a stream; a node watches a dozen prefixes
RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
_REFUSED: Final = ("permission denied", "auth token", "user name is empty")


class _Watch:
    """One watch: its next revision, and when it last received anything."""

    def __init__(self, start: bytes, end: bytes, *, from_revision: int, now: float) -> None:
        self.start = start
        self.end = end
        self.from_revision = from_revision
        self.heard_at = now
        self._kept_back: list[Event] = []

    def begin(self) -> bytes:
        self._kept_back.clear()
        return encode_watch(self.start, self.end, from_revision=max(1, self.from_revision - 1))

    def take(self, answer: WatchAnswer) -> Sequence[Event]:
        """Return the changes that are complete with this reply, in order."""
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
        """The longest time for which a watch may have missed changes."""
        now = self._loop.time()
        return int(max((now - watch.heard_at for watch in self._watches), default=0.0) * 1_000)

    async def follow(
        self, start: bytes, end: bytes, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield changes of keys from start to end, as ``store.Store.watch``. Raises Compacted;
        StoreUnusable if etcd refuses; Throttled."""
        if len(self._watches) >= WATCHES_MAX:
            raise Throttled("Too many etcd watches are open.")
        watch = _Watch(start, end, from_revision=from_revision, now=self._loop.time())
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
                    if failed.fault.is_final:
                        raise failed.fault.error from failed
                    self._links.failed(link, failed.fault.error)
                except Unreachable:
                    continue  # ``ready`` has waited
                except StoreUnusable:
                    if self._closed.is_set():
                        return
                    raise
                await self._pause(retry_seconds)
                retry_seconds = min(2 * retry_seconds, RETRY_SECONDS_MAX)
        finally:
            self._watches.discard(watch)

    async def _stream(self, link: Link, watch: _Watch) -> AsyncGenerator[Sequence[Event], None]:
        """Yield changes until the stream breaks (Failed) or is closed here."""
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
                    raise Failed(Fault(StoreUnreachable(text)))
                data, read = read.result(), None
                watch.heard_at = self._loop.time()
                answer = decode_watch(data)
                if answer.is_cancelled:
                    raise _end_of(answer, link)
                events = watch.take(answer)
                if events:
                    yield events
        finally:
            stream.cancel()
            if read is not None:
                await abandon((read,))

    async def _is_heard(self, link: Link, stream: Any, read: asyncio.Task[Any]) -> bool:
        """Wait for a reply; False if the member is silent. Progress is requested repeatedly: some
        versions do not reply while a watch catches up."""
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
                    await stream.write(PROGRESS)
            except TimeoutError:
                return False

    async def _pause(self, seconds: float) -> None:
        """Wait a random time, so that nodes do not reconnect all at once; ends with the store."""
        try:
            async with asyncio.timeout(seconds * (0.5 + self._chance() / 2)):
                await self._closed.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        self._closed.set()
        await self._links.close()


async def _read(link: Link, stream: Any) -> bytes:
    async with link.failing():
        data = await stream.read()
        if data is aio.EOF:
            raise Failed(Fault(StoreUnreachable(f"etcd at {link.endpoint} ended a watch")))
        assert isinstance(data, bytes)
        return data


def _end_of(answer: WatchAnswer, link: Link) -> PenstockError | Failed:
    if answer.compacted:
        return Compacted(answer.compacted + 1)
    text = f"etcd at {link.endpoint}: {one_line(answer.reason) or 'a watch was ended'}"
    if any(refused in text for refused in _REFUSED):
        return StoreUnusable(text)
    return Failed(Fault(StoreUnreachable(text)))
