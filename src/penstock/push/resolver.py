"""Addresses of endpoints: looked up, judged by the address guard, and kept for a short time.

A request connects to an address from here and to no other. The lookup that was judged is therefore
the one that is used, and a name that changes its address gains nothing. Lookups run in threads of
their own, because the system's lookup function blocks. Names with slow name servers occupy at most
these threads, and the names of one tenant at most half of them."""

import asyncio
import queue
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.net.http.client_messages import FailureReason, RequestFailed
from penstock.push.address_guard import AddressGuard, plain_address
from penstock.wire.webhooks.endpoint_url import EndpointUrl

Lookup = Callable[[str], Sequence[str]]

THREADS_MAX: Final = 8
THREADS_PER_TENANT_MAX: Final = THREADS_MAX // 2
WAITING_MAX: Final = 16  # more lookups would wait for longer than LOOKUP_SECONDS_MAX
WAITING_PER_TENANT_MAX: Final = WAITING_MAX // 2
LOOKUP_SECONDS_MAX: Final = 3.0
KEPT_SECONDS: Final = 30.0
FAILURE_KEPT_SECONDS: Final = 5.0
ENTRIES_MAX: Final = 4_096
ADDRESSES_MAX: Final = 256  # of one name; judging them takes some milliseconds
ADDRESSES_KEPT_MAX: Final = 8


def system_lookup(host: str) -> Sequence[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in found]


class _LookupFailed(Exception): ...


class _Entry(msgspec.Struct, frozen=True):
    guard: AddressGuard  # that has judged the addresses
    until: float
    addresses: tuple[str, ...] = ()
    failure: tuple[FailureReason, str] | None = None


class Resolver:
    def __init__(
        self,
        guard: AddressGuard,
        *,
        lookup: Lookup = system_lookup,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.guard = guard  # may be replaced; addresses are then judged again
        self._lookup = lookup
        self._now = now
        self._entries: dict[tuple[str, int], _Entry] = {}  # the oldest is first
        # Lookups under way or waiting, by name: the future of addresses, or of an error text.
        self._running: dict[str, asyncio.Future[tuple[str, ...] | str]] = {}
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque()  # tenant and lookup
        self._busy: Counter[str] = Counter()  # threads, by tenant
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread_count = 0

    async def find(self, url: EndpointUrl, *, tenant: str, timeout_s: float) -> tuple[str, ...]:
        """Return the addresses that a request to a URL may connect to, the best one first. Raises
        RequestFailed: DNS or REFUSED_ADDRESS, which hold for every tenant, or TIMEOUT."""
        key = url.host, url.port
        entry = self._entries.get(key)
        if entry is None or entry.guard is not self.guard or entry.until <= self._now():
            entry = await self._make_entry(url, tenant, timeout_s)
            self._entries.pop(key, None)
            if len(self._entries) >= ENTRIES_MAX:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = entry
        if entry.failure is not None:
            raise RequestFailed(*entry.failure)
        return entry.addresses

    def close(self) -> None:
        """End the threads, each after the lookup that it does."""
        for _ in range(self._thread_count):
            self._jobs.put(None)
        self._thread_count = 0

    async def _make_entry(self, url: EndpointUrl, tenant: str, timeout_s: float) -> _Entry:
        addresses: tuple[str, ...] = (url.host,)
        failure: tuple[FailureReason, str] | None = None
        # A name that must not be called is not looked up: its name server would get a request.
        refusal = self.guard.host_refusal(url.host, url.port)
        if refusal is None and not url.is_address:
            try:
                addresses = await self._look_up(url.host, tenant, timeout_s)
            except _LookupFailed as failed:
                failure = FailureReason.DNS, str(failed)
        guard = self.guard
        if failure is None:
            refusal = guard.refusal(url.host, url.port, addresses)
            if refusal is None:
                kept = tuple(dict.fromkeys(map(plain_address, addresses)))[:ADDRESSES_KEPT_MAX]
                return _Entry(guard, self._now() + KEPT_SECONDS, kept)
            failure = FailureReason.REFUSED_ADDRESS, refusal
        return _Entry(guard, self._now() + FAILURE_KEPT_SECONDS, failure=failure)

    async def _look_up(self, host: str, tenant: str, timeout_s: float) -> tuple[str, ...]:
        running = self._running.get(host)
        if running is None:
            own_count = sum(each == tenant for each, _ in self._waiting)
            if len(self._waiting) >= WAITING_MAX or own_count >= WAITING_PER_TENANT_MAX:
                # Not DNS: that would open the circuit breaker of the destination for all tenants.
                raise RequestFailed(FailureReason.TIMEOUT, "too many lookups are waiting")
            running = self._start(host, tenant)
        wait_s = min(timeout_s, LOOKUP_SECONDS_MAX)
        await asyncio.wait((running,), timeout=wait_s)
        if not running.done():
            detail = f"no address of {host} in {wait_s:g} s"
            if wait_s < LOOKUP_SECONDS_MAX:  # others may have more time, so this is not kept
                raise RequestFailed(FailureReason.TIMEOUT, detail)
            raise _LookupFailed(detail)
        result = running.result()
        if isinstance(result, str):
            raise _LookupFailed(f"{host}: {result}")
        if len(result) > ADDRESSES_MAX:
            raise _LookupFailed(f"{host} has more than {ADDRESSES_MAX} addresses")
        return result

    def _start(self, host: str, tenant: str) -> asyncio.Future[tuple[str, ...] | str]:
        loop = asyncio.get_running_loop()
        running = self._running[host] = loop.create_future()

        def ended(result: tuple[str, ...] | str) -> None:
            del self._running[host]
            self._busy -= Counter((tenant,))  # drops a count of 0
            running.set_result(result)
            self._start_next()

        def look_up() -> None:
            result: tuple[str, ...] | str
            try:
                result = tuple(self._lookup(host))
            except Exception as error:  # also UnicodeError; the thread must go on
                result = str(error) or type(error).__name__
            try:
                loop.call_soon_threadsafe(ended, result)
            except RuntimeError:
                pass  # the event loop was closed meanwhile

        self._waiting.append((tenant, look_up))
        self._start_next()
        return running

    def _start_next(self) -> None:
        """Give the first lookup that may start to a thread. A lookup that ends frees one thread."""
        if self._busy.total() == THREADS_MAX:
            return
        for place, (tenant, look_up) in enumerate(self._waiting):
            if self._busy[tenant] < THREADS_PER_TENANT_MAX:
                del self._waiting[place]
                self._busy[tenant] += 1
                self._jobs.put(look_up)
                break
        if self._thread_count < self._busy.total():
            self._thread_count += 1
            # A daemon, because a lookup can take half a minute and must not delay the end of the
            # process.
            threading.Thread(target=self._work, name="resolver", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
