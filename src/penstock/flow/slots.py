"""The slots of a node: which subscription may start its next request now?

A request needs a slot of its subscription (an adaptive or a fixed limit), of its destination (a
scheme, host and port) and of the node, in this order. It also has to be due: the rate limit and the
circuit breakers of the subscription and of the destination must allow it. Requests without a slot
hold nothing: their messages stay in the log.

A subscription that wants to start a request is in exactly one place: it waits for the end of one of
its own requests, for a point in time, in the line of its destination, or, with a slot of its
destination, in the line of the node. Only an event that concerns it moves it on, so thousands of
waiting subscriptions cost nothing. Each step takes constant time, a wait for a point in time the
logarithm of the number of such waits.

    slots.want(subscription, requests, now_ms=…)
    while (slot := slots.start(now_ms=…)) is not None: …    # after every other call
    slots.send(slot, len(body), now_ms=…)
    slots.end(slot, health, now_ms=…)                       # always, exactly once"""

import heapq
from collections.abc import Hashable
from typing import Final

from penstock.flow.adaptive_limit import LIMIT_MAX, AdaptiveLimit
from penstock.flow.breaker import Breaker
from penstock.flow.leaky_bucket import LeakyBucket
from penstock.flow.turns import Line, Pool
from penstock.flow.verdicts import Health
from penstock.model.identity import Rate
from penstock.model.limits import MIB

REQUESTS_MAX: Final = 2_000  # on a node: each has a connection
BYTES_MAX: Final = 64 * MIB  # of request bodies on a node
DESTINATION_REQUESTS_MAX: Final = 256  # connections to one server
SUBSCRIPTION_PART: Final = 4  # a subscription holds at most a quarter of the node's slots and bytes
WOKEN_MAX: Final = 64  # due subscriptions that one step looks at, about 0.1 ms

# Where a subscription is.
_IDLE, _OWN, _TIMED, _DESTINATION, _NODE = range(5)
_INFINITY: Final = float("inf")


class Subscription:
    """The limits of one subscription and the slots that it holds. For the readers of status rows
    ``limit``, ``held`` and ``breaker`` are public; only ``Slots`` changes them."""

    __slots__ = (
        "_adaptive",
        "_bucket",
        "_destination",
        "_destination_line",
        "_node_line",
        "_place",
        "_probe",
        "_timer",
        "_wanted",
        "breaker",
        "bytes",
        "held",
        "limit",
        "request_bytes",
    )
    _bucket: LeakyBucket | None
    _adaptive: AdaptiveLimit | None
    _destination: "Destination"
    _destination_line: "Line[Subscription]"
    limit: int
    request_bytes: int  # reserved for each request until its size is known

    def __init__(self, node_line: "Line[Subscription]") -> None:
        self._node_line = node_line
        self._adaptive = None
        self._bucket = None
        self._place = _IDLE
        self._timer = 0  # the number of its timer, while it waits for a point in time
        self._wanted = 0  # requests that it would start if it could
        self.breaker: Breaker | None = None  # None: no failure since the last success
        self._probe: Slot | None = None  # the request that probes the endpoint
        self.held = 0
        self.bytes = 0

    @property
    def tenant(self) -> str:
        return self._node_line.tenant


class Destination(Pool[Subscription]):
    """The slots for one scheme, host and port. A subscription that waits for the node holds one."""

    __slots__ = ("breaker", "key", "probe", "timer")

    def __init__(self, key: Hashable, requests_max: int) -> None:
        super().__init__(requests_max)
        self.key = key
        self.breaker: Breaker | None = None  # None: no failure since the last connection
        # The request that probes the destination, or the subscription that is going to start it.
        self.probe: Slot | Subscription | None = None
        self.timer = 0


class Slot:
    """The right to make one request."""

    __slots__ = (
        "_began_ms",
        "_bytes",
        "_destination",
        "_is_ended",
        "_is_sent",
        "_line",
        "subscription",
    )

    def __init__(self, subscription: Subscription, now_ms: int) -> None:
        self.subscription = subscription
        self._destination = subscription._destination
        self._line = subscription._destination_line
        self._bytes = subscription.request_bytes
        self._began_ms = now_ms
        self._is_sent = self._is_ended = False


class Slots:
    def __init__(
        self,
        *,
        requests_max: int = REQUESTS_MAX,
        bytes_max: int = BYTES_MAX,
        destination_requests_max: int = DESTINATION_REQUESTS_MAX,
    ) -> None:
        self.node: Pool[Subscription] = Pool(requests_max, bytes_max)
        self._subscription_requests_max = max(1, requests_max // SUBSCRIPTION_PART)
        self._subscription_bytes_max = bytes_max // SUBSCRIPTION_PART
        self._destination_requests_max = destination_requests_max
        self._destinations: dict[Hashable, Destination] = {}
        self._timers: list[tuple[float, int, Subscription | Destination]] = []  # a heap
        self._timer = 0  # the number of the last timer

    @property
    def wake_at_ms(self) -> float | None:
        """Return the next time at which ``start`` may succeed without another call before it."""
        timers = self._timers
        while timers and _timer_of(timers[0][2]) != timers[0][1]:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    # ── Subscriptions ────────────────────────────────────────────────────────────────────────

    def add(
        self,
        tenant: str,
        destination: Hashable,
        *,
        limit: int | None = None,
        rate: Rate | None = None,
        request_bytes: int,
    ) -> Subscription:
        """Add a subscription. ``limit`` is None for an adaptive limit. ``request_bytes``, the size
        of its largest request, is reserved for each request until ``send`` sets the true size."""
        subscription = Subscription(self.node.join(tenant))
        self._set(subscription, destination, limit, rate, request_bytes)
        return subscription

    def change(
        self,
        subscription: Subscription,
        destination: Hashable,
        *,
        limit: int | None = None,
        rate: Rate | None = None,
        request_bytes: int,
        now_ms: int,
    ) -> None:
        """Change the settings; requests in progress count against the new limits."""
        self._leave(subscription)
        before = subscription._destination
        before.leave(subscription._destination_line)
        if destination != before.key:  # another server: what is known about the first is useless
            subscription._adaptive = subscription.breaker = subscription._probe = None
        self._set(subscription, destination, limit, rate, request_bytes)
        self._tidy(before, now_ms)
        self._route(subscription, now_ms)

    def remove(self, subscription: Subscription, *, now_ms: int) -> None:
        """Remove a subscription. Its requests in progress hold their slots until they end."""
        self._leave(subscription)
        subscription._wanted = 0
        self.node.leave(subscription._node_line)
        subscription._destination.leave(subscription._destination_line)
        self._tidy(subscription._destination, now_ms)

    def want(self, subscription: Subscription, requests: int, *, now_ms: int) -> None:
        """Set the number of requests that the subscription has to start; 0 pauses it."""
        subscription._wanted = requests
        if requests and subscription._place == _IDLE:
            self._route(subscription, now_ms)

    def _set(
        self,
        subscription: Subscription,
        key: Hashable,
        limit: int | None,
        rate: Rate | None,
        request_bytes: int,
    ) -> None:
        destination = self._destinations.get(key)
        if destination is None:
            destination = Destination(key, self._destination_requests_max)
            self._destinations[key] = destination
        subscription._destination = destination
        subscription._destination_line = destination.join(subscription._node_line.tenant)
        subscription.request_bytes = min(request_bytes, self._subscription_bytes_max)
        if limit is not None:
            subscription._adaptive = None
            subscription.limit = max(1, min(limit, self._subscription_requests_max))
        elif subscription._adaptive is None:
            limit_max = min(LIMIT_MAX, self._subscription_requests_max)
            subscription._adaptive = AdaptiveLimit(limit_max=limit_max)
            subscription.limit = subscription._adaptive.limit
        if rate is None or not rate.per_s:
            subscription._bucket = None
        elif subscription._bucket is None or subscription._bucket.rate != rate:
            bucket = LeakyBucket(rate)
            if subscription._bucket is not None:  # a change of the rate does not empty the bucket
                bucket.empty_at_ms = subscription._bucket.empty_at_ms
            subscription._bucket = bucket

    # ── Requests ─────────────────────────────────────────────────────────────────────────────

    def start(self, *, now_ms: int) -> Slot | None:
        """Take all slots for one request of the subscription whose turn it is. Returns None if no
        subscription may start a request now."""
        while True:
            is_woken = self._wake(now_ms)
            subscription = self.node.pop()
            if subscription is not None:
                if self._may_start(subscription, now_ms):
                    return self._start(subscription, now_ms)
                self._leave_destination(subscription)
                self._route(subscription, now_ms)
                self._drain(subscription._destination, now_ms)
            elif not is_woken:
                return None

    def send(self, slot: Slot, request_bytes: int, *, now_ms: int) -> None:
        """Set the true size of a request that is sent now; its time is measured from here."""
        assert not slot._is_ended
        subscription, added_bytes = slot.subscription, request_bytes - slot._bytes
        slot._bytes = request_bytes
        slot._began_ms = now_ms
        slot._is_sent = True
        subscription.bytes += added_bytes
        self.node.resize(subscription._node_line, added_bytes)
        if subscription._place == _OWN:
            self._route(subscription, now_ms)

    def end(self, slot: Slot, health: Health, *, now_ms: int) -> None:
        """Give all slots of a request back. ``health`` is the result of the request."""
        assert not slot._is_ended, "a slot is given back once"
        slot._is_ended = True
        subscription, destination = slot.subscription, slot._destination
        is_full = subscription.held >= subscription.limit
        subscription.held -= 1
        subscription.bytes -= slot._bytes
        self.node.give_back(subscription._node_line, slot._bytes)
        destination.give_back(slot._line)
        took_ms = now_ms - slot._began_ms
        adaptive = subscription._adaptive
        if health is Health.GOOD:
            if adaptive is not None:
                adaptive.succeeded(took_ms=took_ms, is_full=is_full, now_ms=now_ms)
                subscription.limit = adaptive.limit
            if subscription.breaker is not None:
                subscription.breaker = subscription._probe = None
                self._look_again(subscription)
        elif health is Health.UNKNOWN:
            self._undo(slot, now_ms)
        else:
            if adaptive is not None and health is not Health.FAILING:
                adaptive.overloaded(took_ms=took_ms, now_ms=now_ms)
                subscription.limit = adaptive.limit
            breaker = subscription.breaker
            if breaker is None:
                breaker = subscription.breaker = Breaker()
            if not breaker.admits_at_ms or subscription._probe is slot:
                breaker.failed(now_ms=now_ms)
                subscription._probe = None
        if health is Health.UNREACHABLE:
            breaker = destination.breaker
            if breaker is None:
                breaker = destination.breaker = Breaker()
            if not breaker.admits_at_ms or destination.probe is slot:
                breaker.failed(now_ms=now_ms)
                destination.probe = None
        elif destination.breaker is not None and health is not Health.UNKNOWN:
            destination.breaker = destination.probe = None  # there was a connection
            destination.timer = 0
        if subscription._place == _OWN:
            self._route(subscription, now_ms)
        self._tidy(destination, now_ms)

    # ── Steps ────────────────────────────────────────────────────────────────────────────────

    def _wait_until(self, subscription: Subscription, now_ms: int) -> float:
        """Return when the subscription's own limits allow a request: 0 for now, infinity for after
        the end of one of its requests."""
        if (
            subscription.held >= subscription.limit
            or subscription.bytes + subscription.request_bytes > self._subscription_bytes_max
        ):
            return _INFINITY
        if subscription.breaker is not None:
            at_ms = subscription.breaker.admits_at_ms
            if at_ms > now_ms:
                return at_ms
        bucket = subscription._bucket
        if bucket is not None and bucket.empty_at_ms - now_ms > bucket.room_ms:
            return now_ms + max(1, bucket.wait_ms(1, now_ms=now_ms))
        return 0

    def _route(self, subscription: Subscription, now_ms: int) -> None:
        """Bring a subscription that is in no line to the place where it has to wait."""
        if not self._is_due(subscription, now_ms):
            return
        destination = subscription._destination
        if (
            destination.breaker is None
            and not destination.turns
            and destination.held < destination.half
        ):
            self._pass_on(subscription)
        else:
            subscription._place = _DESTINATION
            destination.append(subscription._destination_line, subscription)
            self._drain(destination, now_ms)

    def _is_due(self, subscription: Subscription, now_ms: int) -> bool:
        """Return whether the subscription wants a request and its own limits allow it. Otherwise
        let it wait for that; it must be in no line."""
        if not subscription._wanted:
            subscription._place = _IDLE
            return False
        at_ms = self._wait_until(subscription, now_ms)
        if not at_ms:
            return True
        if at_ms == _INFINITY:
            subscription._place = _OWN
        else:
            subscription._place = _TIMED
            subscription._timer = self._set_timer(at_ms, subscription)
        return False

    def _pass_on(self, subscription: Subscription) -> None:
        """Take a slot of the destination and wait for one of the node."""
        subscription._destination.take(subscription._destination_line)
        subscription._place = _NODE
        self.node.append(subscription._node_line, subscription)

    def _drain(self, destination: Destination, now_ms: int) -> None:
        """Pass on the subscriptions for which the destination has slots."""
        breaker = destination.breaker
        at_ms = 0 if breaker is None else breaker.admits_at_ms
        if at_ms > now_ms:
            if destination.turns and at_ms != _INFINITY and not destination.timer:
                destination.timer = self._set_timer(at_ms, destination)
            return
        while (subscription := destination.pop()) is not None:
            if self._is_due(subscription, now_ms):
                self._pass_on(subscription)
                if breaker is not None and at_ms:
                    breaker.admits(now_ms=now_ms)
                    destination.probe = subscription
                    return

    def _may_start(self, subscription: Subscription, now_ms: int) -> bool:
        destination = subscription._destination
        return (
            subscription._wanted > 0
            and (
                destination.breaker is None
                or destination.probe is subscription
                or not destination.breaker.admits_at_ms
            )
            and not self._wait_until(subscription, now_ms)
        )

    def _start(self, subscription: Subscription, now_ms: int) -> Slot:
        slot = Slot(subscription, now_ms)
        subscription.held += 1
        subscription.bytes += slot._bytes
        self.node.take(subscription._node_line, slot._bytes)
        if slot._destination.probe is subscription:
            slot._destination.probe = slot
        breaker = subscription.breaker
        if breaker is not None and breaker.admits_at_ms:
            breaker.admits(now_ms=now_ms)
            subscription._probe = slot
        if subscription._bucket is not None:
            subscription._bucket.add(1, now_ms=now_ms)
        subscription._wanted -= 1
        self._route(subscription, now_ms)
        return slot

    def _undo(self, slot: Slot, now_ms: int) -> None:
        """Take back what a request without a result has used."""
        subscription, destination = slot.subscription, slot._destination
        if not slot._is_sent and subscription._bucket is not None:
            subscription._bucket.add(-1, now_ms=now_ms)
            self._look_again(subscription)
        if subscription._probe is slot:
            assert subscription.breaker is not None
            subscription.breaker.abandon_probe()
            subscription._probe = None
        if destination.probe is slot:
            assert destination.breaker is not None
            destination.breaker.abandon_probe()
            destination.probe = None

    def _look_again(self, subscription: Subscription) -> None:
        """Let a subscription that waits for a point in time wait for the end of a request."""
        if subscription._place == _TIMED:
            subscription._place = _OWN
            subscription._timer = 0

    def _leave(self, subscription: Subscription) -> None:
        """Take a subscription out of the place where it waits."""
        if subscription._place == _NODE:
            self.node.discard(subscription._node_line, subscription)
            self._leave_destination(subscription)
        elif subscription._place == _DESTINATION:
            subscription._destination.discard(subscription._destination_line, subscription)
        subscription._timer = 0
        subscription._place = _IDLE

    def _leave_destination(self, subscription: Subscription) -> None:
        destination = subscription._destination
        destination.give_back(subscription._destination_line)
        if destination.probe is subscription:
            assert destination.breaker is not None
            destination.breaker.abandon_probe()
            destination.probe = None

    def _tidy(self, destination: Destination, now_ms: int) -> None:
        """Use the slots that became free, or forget a destination without subscriptions."""
        if destination.turns:
            self._drain(destination, now_ms)
        elif not destination.lines:
            self._destinations.pop(destination.key, None)

    # ── Timers ───────────────────────────────────────────────────────────────────────────────

    def _set_timer(self, at_ms: float, owner: Subscription | Destination) -> int:
        self._timer += 1
        heapq.heappush(self._timers, (at_ms, self._timer, owner))
        return self._timer

    def _wake(self, now_ms: int) -> bool:
        """Move on the subscriptions that waited for a time before now. Returns whether there were
        any."""
        timers = self._timers
        if not timers or timers[0][0] > now_ms:
            return False
        for _ in range(WOKEN_MAX):
            if not timers or timers[0][0] > now_ms:
                break
            _, number, owner = heapq.heappop(timers)
            if _timer_of(owner) != number:
                continue  # no longer waiting for it
            if isinstance(owner, Subscription):
                owner._timer = 0
                self._route(owner, now_ms)
            else:
                owner.timer = 0
                self._drain(owner, now_ms)
        return True


def _timer_of(owner: Subscription | Destination) -> int:
    return owner._timer if isinstance(owner, Subscription) else owner.timer
