"""Slots against a naive model: no limit is exceeded, and whoever may start a request starts it."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow.breaker import FAILURES_MAX, OPEN_MS_MIN, Breaker
from penstock.flow.leaky_bucket import LeakyBucket
from penstock.flow.slots import Slot, Slots, Subscription
from penstock.flow.verdicts import Health
from penstock.model.identity import Rate

REQUESTS_MAX, BYTES_MAX, DESTINATION_MAX = 24, 1_000, 8
REQUEST_BYTES = 40


class Guarded:
    """A circuit breaker and the request that probes."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.probe: Slot | None = None

    def started(self, slot: Slot, now_ms: int) -> None:
        if self.breaker.admits_at_ms:
            self.probe = slot
            assert self.breaker.admits(now_ms=now_ms), "an open breaker admits one probe"

    def ended(self, slot: Slot, now_ms: int, *, is_failure: bool, is_success: bool) -> None:
        if is_success:
            self.breaker.succeeded()
        elif is_failure and (self.probe is slot or not self.breaker.admits_at_ms):
            self.breaker.failed(now_ms=now_ms)
        elif self.probe is slot:
            self.breaker.abandon_probe()
        if is_success or self.probe is slot:
            self.probe = None


class Member(Guarded):
    """What the model knows about a subscription."""

    def __init__(self, tenant: str, destination: str, limit: int | None, rate: Rate | None) -> None:
        super().__init__()
        self.tenant = tenant
        self.destination = destination
        self.limit = limit
        self.bucket = None if rate is None else LeakyBucket(rate)
        self.wanted = 0


class Model:
    """Looks at every subscription and every request in progress for each question."""

    def __init__(self) -> None:
        self.members: dict[Subscription, Member] = {}
        self.in_progress: dict[Slot, int] = {}  # with their bytes
        self.unsent: set[Slot] = set()
        self.owners: dict[Slot, Member] = {}
        self.destinations: dict[str, Guarded] = {}

    def held(self, slots: Iterable[Slot]) -> tuple[int, int]:
        sizes = [self.in_progress[slot] for slot in slots]
        return len(sizes), sum(sizes)

    def of(self, **named: object) -> list[Slot]:
        return [
            slot
            for slot in self.in_progress
            if all(getattr(self.owners[slot], name) == value for name, value in named.items())
        ]

    def of_member(self, member: Member) -> list[Slot]:
        return [slot for slot in self.in_progress if self.owners[slot] is member]

    def own_time(self, member: Member, now_ms: int) -> float:
        at_ms = member.breaker.admits_at_ms
        if member.bucket is not None:
            at_ms = max(at_ms, now_ms + member.bucket.wait_ms(1, now_ms=now_ms))
        return at_ms

    def has_own_slots(self, subscription: Subscription) -> bool:
        member = self.members[subscription]
        count, size = self.held(self.of_member(member))
        limit = subscription.limit if member.limit is None else member.limit
        part = REQUESTS_MAX // 4, BYTES_MAX // 4
        return count < min(limit, part[0]) and size + REQUEST_BYTES <= part[1]

    def is_waiting(self, subscription: Subscription) -> bool:
        return self.members[subscription].wanted > 0 and self.has_own_slots(subscription)

    def node_is_free(self, tenant: str) -> bool:
        count, size = self.held(self.in_progress)
        if count >= REQUESTS_MAX or size + REQUEST_BYTES > BYTES_MAX:
            return False
        own_count, own_size = self.held(self.of(tenant=tenant))
        if own_count < REQUESTS_MAX / 2 and own_size + REQUEST_BYTES <= BYTES_MAX / 2:
            return True
        tenants = {member.tenant for member in self.members.values()}
        tenants |= {self.owners[slot].tenant for slot in self.in_progress}
        return len(tenants) == 1 or (
            count < REQUESTS_MAX * 7 / 8 and size + REQUEST_BYTES <= BYTES_MAX * 7 / 8
        )

    def destination_is_free(self, tenant: str, destination: str, passed_on: int) -> bool:
        """``passed_on`` subscriptions hold a slot of the destination and wait for the node."""
        count = len(self.of(destination=destination)) + passed_on
        if passed_on or count < DESTINATION_MAX / 2:
            # Those who wait for the node may be of this tenant or not: no exact answer.
            return not passed_on
        own_count = len(self.of(destination=destination, tenant=tenant))
        if own_count < DESTINATION_MAX / 2:
            return count < DESTINATION_MAX
        users = [*self.members.values(), *self.owners_in_progress()]
        tenants = {user.tenant for user in users if user.destination == destination}
        return count < DESTINATION_MAX * (1 if len(tenants) == 1 else 7 / 8)

    def owners_in_progress(self) -> list[Member]:
        return [self.owners[slot] for slot in self.in_progress]

    def startable_at(self, now_ms: int) -> dict[Subscription, float]:
        """Return the subscriptions for which all slots are free, with the time when they may start
        a request as far as rates and circuit breakers are concerned."""
        found: dict[Subscription, float] = {}
        waiting = [each for each in self.members if self.is_waiting(each)]
        blocked = Counter(
            self.members[each].destination
            for each in waiting
            if not self.node_is_free(self.members[each].tenant)
        )
        for each in waiting:
            member = self.members[each]
            key = member.destination
            if self.node_is_free(member.tenant) and self.destination_is_free(
                member.tenant, key, blocked[key]
            ):
                # Waits are rounded up: a rate may allow a request a millisecond before its timer.
                at_ms = self.own_time(member, now_ms - 1)
                found[each] = max(at_ms, self.destinations[key].breaker.admits_at_ms)
        return found


class World:
    def __init__(self) -> None:
        self.slots = Slots(
            requests_max=REQUESTS_MAX,
            bytes_max=BYTES_MAX,
            destination_requests_max=DESTINATION_MAX,
        )
        self.model = Model()
        self.now_ms = 1_000

    def add(self, tenant: str, destination: str, limit: int | None, rate: Rate | None) -> None:
        made = self.slots.add(
            tenant, destination, limit=limit, rate=rate, request_bytes=REQUEST_BYTES
        )
        self.model.members[made] = Member(tenant, destination, limit, rate)
        self.model.destinations.setdefault(destination, Guarded())

    def remove(self, subscription: Subscription) -> None:
        self.slots.remove(subscription, now_ms=self.now_ms)
        del self.model.members[subscription]

    def want(self, subscription: Subscription, requests: int) -> None:
        self.slots.want(subscription, requests, now_ms=self.now_ms)
        self.model.members[subscription].wanted = requests

    def send(self, slot: Slot, size: int) -> None:
        self.slots.send(slot, size, now_ms=self.now_ms)
        self.model.in_progress[slot] = size
        self.model.unsent.discard(slot)

    def end(self, slot: Slot, health: Health) -> None:
        self.slots.end(slot, health, now_ms=self.now_ms)
        model, owner = self.model, self.model.owners.pop(slot)
        del model.in_progress[slot]
        is_used = health is not Health.UNKNOWN
        is_success = health is Health.GOOD
        owner.ended(slot, self.now_ms, is_success=is_success, is_failure=is_used)
        model.destinations[owner.destination].ended(
            slot,
            self.now_ms,
            is_failure=health is Health.UNREACHABLE,
            is_success=is_used and health is not Health.UNREACHABLE,
        )
        if slot in model.unsent:
            model.unsent.remove(slot)
            if not is_used and owner.bucket is not None:
                owner.bucket.add(-1, now_ms=self.now_ms)

    def start_all(self) -> list[Subscription]:
        started = []
        while (slot := self.slots.start(now_ms=self.now_ms)) is not None:
            self._check_start(slot)
            started.append(slot.subscription)
        self._check_none_may_start()
        return started

    def _check_start(self, slot: Slot) -> None:
        model, member = self.model, self.model.members[slot.subscription]
        assert model.is_waiting(slot.subscription), "the limit of the subscription"
        assert model.own_time(member, self.now_ms) <= self.now_ms, "its rate, its breaker"
        assert model.node_is_free(member.tenant), "the limit of the node, the part of the tenant"
        # Whether the tenant had its part was decided when it took the slot of the destination.
        assert len(model.of(destination=member.destination)) < DESTINATION_MAX
        destination = model.destinations[member.destination]
        assert destination.breaker.admits_at_ms <= self.now_ms
        member.wanted -= 1
        model.in_progress[slot] = REQUEST_BYTES
        model.owners[slot] = member
        model.unsent.add(slot)
        member.started(slot, self.now_ms)
        destination.started(slot, self.now_ms)
        if member.bucket is not None:
            member.bucket.add(1, now_ms=self.now_ms)
        assert (self.slots.node.held, self.slots.node.bytes) == model.held(model.in_progress)

    def _check_none_may_start(self) -> None:
        at_ms = list(self.model.startable_at(self.now_ms).values())
        assert not [each for each in at_ms if each <= self.now_ms], "somebody may start a request"
        due_ms = min(at_ms, default=float("inf"))
        if due_ms < float("inf"):
            assert self.slots.wake_at_ms is not None
            assert self.slots.wake_at_ms <= due_ms
        assert self.slots.wake_at_ms is None or self.slots.wake_at_ms > self.now_ms


RATES = st.none() | st.builds(Rate, st.sampled_from((0.5, 5.0, 100.0)))
SUBSCRIPTIONS = st.tuples(
    st.sampled_from("ab"), st.sampled_from("xyz"), st.none() | st.integers(1, 9), RATES
)
HEALTH = st.sampled_from([*Health, Health.GOOD, Health.UNREACHABLE, Health.UNREACHABLE])
STEPS = st.one_of(
    st.tuples(st.just("want"), st.integers(0, 99), st.integers(0, 9)),
    st.tuples(st.just("send"), st.integers(0, 99), st.integers(1, 90)),
    st.tuples(st.just("end"), st.integers(0, 99), HEALTH),
    st.tuples(st.just("end"), st.integers(0, 99), HEALTH),
    st.tuples(st.just("wait"), st.sampled_from((0, 1, 20, 400, 2_000, 40_000)), st.none()),
    st.tuples(st.just("wake"), st.none(), st.none()),
    st.tuples(st.just("add"), SUBSCRIPTIONS, st.none()),
    st.tuples(st.just("remove"), st.integers(0, 99), st.none()),
)


@settings(max_examples=300)
@given(members=st.lists(SUBSCRIPTIONS, min_size=3, max_size=9), steps=st.lists(STEPS, max_size=80))
def test_slots_do_what_the_naive_model_does(
    members: list[tuple[str, str, int | None, Rate | None]], steps: list[tuple[str, object, object]]
) -> None:
    world = World()
    for member in members:
        world.add(*member)
    for subscription in world.model.members:
        world.want(subscription, 20)
    world.start_all()
    for what, first, second in steps:
        subscriptions, in_progress = list(world.model.members), list(world.model.in_progress)
        match what, first, second:
            case "want", int(number), int(count) if subscriptions:
                world.want(subscriptions[number % len(subscriptions)], count)
            case "send", int(number), int(size) if in_progress:
                world.send(in_progress[number % len(in_progress)], size)
            case "end", int(number), Health() as health if in_progress:
                world.end(in_progress[number % len(in_progress)], health)
            case "wait", int(wait_ms), _:
                world.now_ms += wait_ms
            case "wake", _, _ if world.slots.wake_at_ms is not None:
                world.now_ms = int(world.slots.wake_at_ms)
            case "add", (str(tenant), str(key), int() | None as limit, Rate() | None as rate), _:
                world.add(tenant, key, limit, rate)
            case "remove", int(number), _ if len(subscriptions) > 3:
                world.remove(subscriptions[number % len(subscriptions)])
        world.start_all()
    _end_everything(world)


def _end_everything(world: World) -> None:
    """Every subscription can use up what it wants, and then nothing is held."""
    model = world.model
    while True:
        for slot in list(model.in_progress):
            world.end(slot, Health.GOOD)
        if not any(member.wanted for member in model.members.values()):
            break
        if not world.start_all():
            assert world.slots.wake_at_ms is not None, "somebody waits for ever"
            world.now_ms = int(world.slots.wake_at_ms)
    for subscription in list(model.members):
        assert (subscription.held, subscription.bytes) == (0, 0)
        world.remove(subscription)
    assert (world.slots.node.held, world.slots.node.bytes) == (0, 0)
    assert not world.slots.node.lines
    assert not world.slots._destinations


# ── Turns ────────────────────────────────────────────────────────────────────────────────────


def add(slots: Slots, tenant: str, destination: str, *, limit: int = 1_000) -> Subscription:
    return slots.add(tenant, destination, limit=limit, request_bytes=1_000)


def start(slots: Slots, now_ms: int = 0) -> list[Slot]:
    """Start and send all requests that may start."""
    found = []
    while (slot := slots.start(now_ms=now_ms)) is not None:
        slots.send(slot, 1_000, now_ms=now_ms)
        found.append(slot)
    return found


@settings(max_examples=30)
@given(
    tenants=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    is_shared=st.booleans(),
    ends=st.lists(st.integers(0, 999), min_size=200, max_size=400),
)
def test_nobody_waits_for_more_than_a_turn_of_everybody(
    tenants: list[int], is_shared: bool, ends: list[int]
) -> None:
    """Whether the node is full, or a destination that all subscriptions share."""
    slots = Slots(requests_max=100 if is_shared else 8, destination_requests_max=8)
    subscriptions = [
        add(slots, f"tenant {number}", "shared" if is_shared else f"{number} {each}")
        for number, count in enumerate(tenants)
        for each in range(count)
    ]
    for subscription in subscriptions:
        slots.want(subscription, 10_000, now_ms=0)
    in_progress = start(slots)
    last = dict.fromkeys(subscriptions, 0)
    most = len(tenants) * max(tenants) + 8
    for turn, end in enumerate(ends):
        slots.end(in_progress.pop(end % len(in_progress)), Health.GOOD, now_ms=0)
        for slot in start(slots):
            last[slot.subscription] = turn
            in_progress.append(slot)
        assert len(in_progress) <= 8
        held = Counter(slot.subscription.tenant for slot in in_progress)
        for each in subscriptions:
            if each.held >= each.limit or held[each.tenant] >= 4:
                last[each] = turn  # it waits for its own requests, or has half of the slots
        assert turn - min(last.values()) <= most


@pytest.mark.parametrize("is_shared", [False, True])
def test_tenants_get_the_same_number_of_slots_whatever_they_have(is_shared: bool) -> None:
    slots = Slots(requests_max=1_000 if is_shared else 16, destination_requests_max=16)
    members = [
        add(slots, tenant, "shared" if is_shared else f"{tenant} {number}")
        for tenant, count in (("small", 2), ("middle", 5), ("large", 50))
        for number in range(count)
    ]
    for member in members:
        slots.want(member, 10_000, now_ms=0)
    in_progress = start(slots)
    counts: Counter[str] = Counter()
    for _ in range(600):
        slots.end(in_progress.pop(0), Health.GOOD, now_ms=0)
        for slot in start(slots):
            counts[slot.subscription.tenant] += 1
            in_progress.append(slot)
    assert max(counts.values()) - min(counts.values()) <= 2


def test_a_fixed_limit_holds_while_it_is_changed() -> None:
    slots = Slots()
    subscription = add(slots, "a", "x", limit=10)
    slots.want(subscription, 100, now_ms=0)
    in_progress = start(slots)
    assert len(in_progress) == 10
    slots.change(subscription, "y", limit=3, request_bytes=1_000, now_ms=0)
    for left in range(9, 2, -1):
        slots.end(in_progress.pop(), Health.GOOD, now_ms=0)
        assert not start(slots)
        assert subscription.held == left
    slots.end(in_progress.pop(), Health.GOOD, now_ms=0)
    assert len(start(slots)) == 1
    slots.change(subscription, "y", limit=5, request_bytes=1_000, now_ms=0)
    assert len(start(slots)) == 2


def test_a_hanging_destination_delays_nobody_else() -> None:
    slots = Slots()
    hanging = [add(slots, f"tenant {number % 9}", "hangs", limit=4) for number in range(10_000)]
    for each in hanging:
        slots.want(each, 100, now_ms=0)
    assert len(start(slots)) == 256
    for number in range(100):
        other = add(slots, f"tenant {number % 9}", f"works {number}", limit=4)
        slots.want(other, 20, now_ms=0)
        for _ in range(5):
            started = start(slots)
            assert [slot.subscription for slot in started] == [other] * 4
            for slot in started:
                slots.end(slot, Health.GOOD, now_ms=0)
    assert not start(slots)


def test_a_tenant_whose_requests_hang_leaves_slots_for_others() -> None:
    slots = Slots()
    for number in range(1_000):
        slots.want(add(slots, "a", f"hangs {number}", limit=4), 4, now_ms=0)
    other = add(slots, "b", "works", limit=4)
    assert len(start(slots)) == 2_000 - 250
    slots.want(other, 4, now_ms=0)
    assert [slot.subscription for slot in start(slots)] == [other] * 4


def test_a_tenant_whose_requests_hang_leaves_slots_of_a_destination_for_others() -> None:
    slots = Slots()
    other = add(slots, "b", "shared", limit=4)
    for _ in range(100):
        slots.want(add(slots, "a", "shared", limit=4), 4, now_ms=0)
    assert len(start(slots)) == 256 - 32
    slots.want(other, 4, now_ms=0)
    assert [slot.subscription for slot in start(slots)] == [other] * 4
    slots.remove(other, now_ms=0)
    assert not start(slots), "requests of the other tenant are still in progress"


def test_a_tenant_alone_may_use_all_slots() -> None:
    slots = Slots()
    for number in range(1_000):
        slots.want(add(slots, "a", f"{number}", limit=4), 4, now_ms=0)
    assert len(start(slots)) == 2_000


def test_a_subscription_holds_a_quarter_at_most() -> None:
    slots = Slots(requests_max=100, bytes_max=1_000_000)
    many = add(slots, "a", "x")
    slots.want(many, 1_000, now_ms=0)
    assert len(start(slots)) == 25
    large = slots.add("a", "y", limit=100, request_bytes=100_000)
    slots.want(large, 1_000, now_ms=0)
    in_progress = [slots.start(now_ms=0), slots.start(now_ms=0)]
    assert slots.start(now_ms=0) is None, "200,000 of 250,000 bytes are reserved"
    assert in_progress[0] is not None
    slots.send(in_progress[0], 10_000, now_ms=0)
    assert slots.start(now_ms=0) is not None
    assert slots.start(now_ms=0) is None


def test_an_open_breaker_of_a_destination_lets_one_probe_through() -> None:
    slots = Slots()
    members = [add(slots, f"tenant {number % 3}", "down", limit=1) for number in range(50)]
    for member in members[:FAILURES_MAX]:
        slots.want(member, 1, now_ms=0)
    for slot in start(slots):
        slots.end(slot, Health.UNREACHABLE, now_ms=0)
    for member in members:
        slots.want(member, 1, now_ms=1)
    assert not start(slots, now_ms=1)
    assert slots.wake_at_ms == OPEN_MS_MIN
    (probe,) = start(slots, now_ms=OPEN_MS_MIN)
    assert slots.wake_at_ms is None, "the end of the probe decides"
    slots.end(probe, Health.UNKNOWN, now_ms=600)
    (probe,) = start(slots, now_ms=600)
    slots.end(probe, Health.UNREACHABLE, now_ms=700)
    assert not start(slots, now_ms=700)
    assert slots.wake_at_ms == 700 + 2 * OPEN_MS_MIN
    (probe,) = start(slots, now_ms=700 + 2 * OPEN_MS_MIN)
    slots.end(probe, Health.FAILING, now_ms=2_000)  # there was a connection
    assert len(start(slots, now_ms=2_000)) == 50 - 2 - 1  # two other probes had one request each


def test_a_slot_is_given_back_once() -> None:
    slots = Slots()
    slots.want(add(slots, "a", "x"), 1, now_ms=0)
    (slot,) = start(slots)
    slots.end(slot, Health.GOOD, now_ms=0)
    with pytest.raises(AssertionError, match="once"):
        slots.end(slot, Health.GOOD, now_ms=0)


def test_a_slot_that_was_not_used_costs_no_rate() -> None:
    slots = Slots()
    subscription = slots.add("a", "x", limit=5, rate=Rate(2, 2), request_bytes=1_000)
    slots.want(subscription, 9, now_ms=0)
    first, second = slots.start(now_ms=0), slots.start(now_ms=0)
    assert first is not None
    assert second is not None
    assert slots.start(now_ms=0) is None
    slots.send(first, 1_000, now_ms=0)
    slots.end(first, Health.UNKNOWN, now_ms=0)
    assert slots.start(now_ms=0) is None, "cancelled, but it was sent"
    slots.end(second, Health.UNKNOWN, now_ms=0)
    assert slots.start(now_ms=0) is not None
