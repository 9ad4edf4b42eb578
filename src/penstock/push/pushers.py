"""The subscriptions for which this node is the home: it alone sends their messages.

The home of a subscription is the leader of one partition of its topic (``home_partition``). So its
limits are plain memory of one node, and exact. When another node becomes the leader, it goes on
from the subscription's share, which is in the log."""

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec

from penstock.flow.slots import Subscription as Lane
from penstock.model.calls import CloseShare, Ends, Fetch, PushOne, ReadPushStatus
from penstock.model.errors import NotFound, PenstockError
from penstock.model.limits import MIB
from penstock.model.message import Record
from penstock.model.ports import LATEST, Catalog, PushReply, PushStatus
from penstock.model.subscription import (
    SHARE_PREFIX,
    Subscription,
    SubscriptionState,
    home_partition,
    owner_of_share,
    share_group,
)
from penstock.model.topic import Topic
from penstock.push.delivery_plan import SQS, Courier, Plan, Wants, make_plan, wants_of
from penstock.push.handshakes import Handshakes
from penstock.push.published import Published, records_of
from penstock.push.push_setup import PushSetup
from penstock.push.pushing import Pusher
from penstock.push.single_requests import Granted, SingleRequests
from penstock.wire.webhooks.endpoint_url import UrlInvalid

DRAIN_SECONDS: Final = 10.0  # for requests in progress when the node stops
ONE_MARGIN_SECONDS: Final = 10.0  # a single request may wait for a slot, beside its timeout
FETCH_BYTES: Final = 4 * MIB
UPDATED_AT_ONCE: Final = 50  # subscriptions, about 0.1 ms each, before other tasks run
SWEPT_AT_ONCE: Final = 1_000  # topics looked at before other tasks run
NEWEST_OFFSETS: Final = 64  # offsets at the end of a log that are searched for the newest message

log_ = logging.getLogger(__name__)


class Pushers:
    def __init__(
        self,
        setup: PushSetup,
        catalog: Catalog,
        *,
        secrets_of: Callable[[Subscription], bytes],  # decrypted
        courier: Courier | None,  # of messages to phones, mailboxes and others
        origin: str,  # DNS name of this cluster
        is_clustered: bool,
    ) -> None:
        self._setup, self._catalog = setup, catalog
        self._secrets_of, self._origin, self._courier = secrets_of, origin, courier
        self._is_clustered = is_clustered
        self._led: set[tuple[str, int]] = set()  # topic id and partition
        self._running: dict[str, Pusher] = {}  # by subscription id
        self.lanes: dict[Lane, Granted] = {}  # who gets the slots of a lane
        self._closing: set[asyncio.Task[None]] = set()
        # By share and partition, with the subscription from which the filter was made.
        self._filters: dict[tuple[str, int], tuple[Subscription, Wants | None]] = {}
        self._due: dict[str, None] = {}  # ids of subscriptions to update, the oldest first
        self._unused: set[str] = set()  # ids of shares that the last sweep found
        self._loop = asyncio.get_running_loop()
        self._is_kicked = self._is_stopped = False
        self.single_requests = SingleRequests(
            setup.outbound, setup.slots, setup.clock, lanes=self.lanes, kick=self.kick
        )
        self._handshakes = Handshakes(
            self.single_requests, setup.subscriptions, setup.clock, setup.metrics, origin=origin
        )
        self._timer: asyncio.TimerHandle | None = None
        setup.subscriptions.on_change(self._subscription_changed)

    # ── Which subscriptions ──────────────────────────────────────────────────────────────────

    def is_led(self, topic: Topic, partition: int) -> bool:
        return (topic.topic_id, partition) in self._led

    def led(self, topic: Topic, partition: int, is_led: bool) -> None:
        """Start or stop pushing, because this node now leads the partition or no longer does."""
        key = (topic.topic_id, partition)
        if is_led == (key in self._led):
            return
        if is_led:
            self._led.add(key)
        else:
            self._led.discard(key)
        for one in tuple(self._setup.subscriptions.of_topic(topic.topic_id)):
            if home_partition(one) != partition:
                continue
            if is_led:
                self._update_soon(one.id)
            else:
                self._update(one.id, one)

    def topic_changed(self, topic: Topic) -> None:
        """Use the new settings of a topic for its subscriptions."""
        for one in tuple(self._setup.subscriptions.of_topic(topic.topic_id)):
            pusher = self._running.get(one.id)
            if pusher is not None:
                if pusher.topic.partition_count != topic.partition_count:
                    self._stop(pusher, is_gone=False)  # another one reads the new partitions too
                else:
                    pusher.outcomes.topic = topic
                self._update_soon(one.id)

    def _update_soon(self, subscription_id: str) -> None:
        """Start or change the pusher of a subscription, which may be one of many."""
        if not self._due:
            self._loop.call_soon(self._update_due)
        self._due[subscription_id] = None

    def _update_due(self) -> None:
        for subscription_id in tuple(islice(self._due, UPDATED_AT_ONCE)):
            del self._due[subscription_id]
            self._update(subscription_id, self._setup.subscriptions.find(subscription_id))
        if self._due:
            self._loop.call_soon(self._update_due)

    def _subscription_changed(
        self, before: Subscription | None, after: Subscription | None
    ) -> None:
        one = after or before
        assert one is not None
        if one.protocol != SQS:
            if before is not None and after is not None and before.id != after.id:
                self._update(before.id, None)
            self._update(one.id, after)

    def _update(self, subscription_id: str, one: Subscription | None) -> None:
        """Start, change or stop the pusher of a subscription, or ask its endpoint first."""
        pusher = self._running.get(subscription_id)
        is_home = (
            one is not None
            and not self._is_stopped
            and one.protocol != SQS
            and (one.topic_id, home_partition(one)) in self._led
        )
        topic = None if one is None else self._catalog.find_id(one.topic_id)
        is_sending = one is not None and one.state is SubscriptionState.CONFIRMED
        is_asking = one is not None and one.needs_permission and one.paused is None
        if not (is_home and is_asking):
            self._handshakes.cancel(subscription_id)
        if pusher is not None and not (is_home and is_sending and topic is not None):
            # A webhook whose endpoint must be asked keeps its position.
            is_gone = one is None or one.state is SubscriptionState.DELETED
            self._stop(pusher, is_gone=is_gone)
            pusher = None
        if one is None or topic is None or not is_home or not (is_sending or is_asking):
            return
        try:
            plan = make_plan(
                one, topic, self._secrets_of(one), origin=self._origin, courier=self._courier
            )
        except (PenstockError, UrlInvalid, msgspec.DecodeError, ValueError) as error:
            about = {"subscription": one.id, "reason": str(error)}
            log_.error("a subscription cannot be used: its settings are invalid", extra=about)
            if pusher is not None:
                self._stop(pusher, is_gone=False)
            return
        if is_asking:
            self._handshakes.ask(one, plan)
        elif pusher is not None:
            pusher.change(one, plan)
        else:
            self._start(one, topic, plan)

    def _start(self, one: Subscription, topic: Topic, plan: Plan) -> None:
        starts_at_ms = self._setup.clock.mono_ms()
        if self._is_clustered and plan.limit is not None:
            # The last home may still have requests in progress, which count against the limit.
            starts_at_ms += plan.timeout_ms
        pusher = Pusher(one, topic, plan, self._setup, kick=self.kick, starts_at_ms=starts_at_ms)
        self._running[one.id] = pusher
        self.lanes[pusher.lane] = pusher

    def _stop(self, pusher: Pusher, *, is_gone: bool) -> None:
        del self._running[pusher.one.id]
        task = self._loop.create_task(self._close(pusher, is_gone), name=f"stop {pusher.one.id}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, pusher: Pusher, is_gone: bool) -> None:
        """Stop a pusher. Requests of a deleted subscription end as they would; those of one that
        has another home are cancelled, because their limit is counted there."""
        await pusher.close(seconds_max=pusher.plan.timeout_ms / 1_000 if is_gone else 0.0)
        self.lanes.pop(pusher.lane, None)
        # A subscription that was restored meanwhile uses the share.
        is_gone = is_gone and pusher.one.id not in self._running
        if is_gone and not pusher.plan.is_consumed:
            try:
                group = share_group(pusher.one)
                await self._setup.broker.call(CloseShare(pusher.topic, group))
            except PenstockError as error:  # ``sweep`` tries again
                about = {"subscription": pusher.one.id, "reason": str(error)}
                log_.info("deleting the share of a subscription failed", extra=about)

    async def sweep(self) -> None:
        """Delete shares of subscriptions and replays that do not exist any more. They must be found
        twice, because a node can learn of a new share before it learns of the subscription."""
        found: set[str] = set()
        for number, topic in enumerate(self._catalog.all_topics(), 1):
            if number % SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)
            source = self._catalog.find_id(topic.source_id or "")
            if source is None or (source.topic_id, 0) not in self._led:
                continue
            group = topic.name.removeprefix(f"{source.name}:")
            owner = owner_of_share(group)
            if owner is None or await self._is_used(owner, group):
                continue
            found.add(topic.topic_id)
            if topic.topic_id in self._unused:
                await self._setup.broker.call(CloseShare(source, group))
        self._unused = found

    async def _is_used(self, owner: str, group: str) -> bool:
        """Return whether a subscription or replay has this share."""
        one = await self._setup.subscriptions.learn(owner)
        if one is None:
            return False
        _, _, replay = group.partition(".")
        return not replay or any(
            each.is_open and str(each.number) == replay for each in one.replays
        )

    def topic_deleted(self, topic: Topic) -> None:
        for partition in range(topic.partition_count):
            self._filters.pop((topic.topic_id, partition), None)

    def wants(self, share: Topic, partition: int) -> Wants | None:
        """Return which records of a partition a share wants; None: all. Called for each read."""
        _, is_pushed, rest = share.name.partition(f":{SHARE_PREFIX}")
        if not is_pushed:
            return None
        name, _, replay = rest.partition(".")
        one = self._setup.subscriptions.find(name)
        source = self._catalog.find_id(share.source_id or "")
        if one is None or source is None:
            return None
        key = (share.topic_id, partition)
        known = self._filters.get(key)
        if known is None or known[0] is not one:
            known = self._filters[key] = (one, wants_of(one, source, partition, bool(replay)))
        return known[1]

    def lost(self, share: Topic, partition: int, count: int) -> None:
        """Tell that messages were deleted before they were delivered. Called on the node that leads
        the partition, once for each message."""
        source, is_pushed, name = share.name.partition(f":{SHARE_PREFIX}")
        if is_pushed:
            self._setup.metrics.lost += count
            about = {"topic": source, "partition": partition, "count": count}
            log_.error(
                "retention removed messages before they were pushed",
                extra={**about, "subscription": name.partition(".")[0]},
            )

    # ── Slots ────────────────────────────────────────────────────────────────────────────────

    def kick(self) -> None:
        if not self._is_kicked:
            self._is_kicked = True
            self._loop.call_soon(self._grant)

    def _grant(self) -> None:
        """Give free slots to the subscriptions whose turn it is."""
        self._is_kicked = False
        slots, clock = self._setup.slots, self._setup.clock
        now_ms = clock.mono_ms()
        while (slot := slots.start(now_ms=now_ms)) is not None:
            self.lanes[slot.subscription].granted(slot)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at_ms = slots.wake_at_ms
        if wake_at_ms is not None:
            delay_s = max(0.001, (wake_at_ms - now_ms) / 1_000)
            self._timer = self._loop.call_later(delay_s, self.kick)

    def measure(self) -> None:
        """Set the gauges, which a scrape reads."""
        metrics, statuses = self._setup.metrics, [each.status for each in self._running.values()]
        metrics.in_flight = sum(each.in_flight for each in statuses)
        metrics.waiting_retries = sum(each.retries for each in statuses)
        metrics.breakers_open = sum(each.is_breaker_open for each in statuses)
        metrics.slots = {"held": self._setup.slots.node.held}

    # ── Calls ────────────────────────────────────────────────────────────────────────────────

    def _find(self, subscription_id: str) -> Pusher:
        pusher = self._running.get(subscription_id)
        if pusher is None:
            raise NotFound("The subscription is not confirmed, or has just moved to another node.")
        return pusher

    async def read_status(self, call: ReadPushStatus) -> PushStatus:
        return self._find(call.subscription_id).status

    async def push_one(self, call: PushOne) -> PushReply:
        pusher = self._find(call.subscription_id)
        message = await self._message(call)
        seconds_max = pusher.plan.timeout_ms / 1_000 + ONE_MARGIN_SECONDS
        return await pusher.push_one(message, is_test=call.is_test, seconds_max=seconds_max)

    async def _message(self, call: PushOne) -> Published:
        topic, setup = call.topic, self._setup
        pusher = self._running[call.subscription_id]
        one, is_signed = pusher.one, pusher.plan.is_signed
        signer = await setup.signer_of(topic) if is_signed else None
        partition, now_ms = call.record_partition, setup.clock.wall_ms()
        if call.message is not None:
            record = Record(0, now_ms, call.message)
        else:
            record = await self._record(topic, partition, call.offset)
        return Published(
            record, topic, partition, signer, protocol=one.protocol, endpoint=one.endpoint
        )

    async def _record(self, topic: Topic, partition: int, offset: int) -> Record:
        """Return a record, or the newest one if ``offset`` is LATEST."""
        setup, begin = self._setup, offset
        if offset == LATEST:
            ends = await setup.broker.call(Ends(topic, partition))
            begin = max(ends.start_offset, ends.last_stable_offset - NEWEST_OFFSETS)
        fetched = await setup.broker.call(
            Fetch(topic, partition, begin, FETCH_BYTES, is_committed=True)
        )
        if setup.opener is not None:
            fetched = await setup.opener.opened_fetch(topic, partition, fetched)
        found = None
        for record in records_of(fetched, topic, partition, begin=begin):
            if offset != LATEST:
                if record.offset == offset:
                    return record
                break
            found = record
        if found is None:
            raise NotFound("There is no such message.")
        return found

    async def stop(self) -> None:
        """Stop pushing, after the requests in progress."""
        self._is_stopped = True
        await self._handshakes.stop()
        for pusher in tuple(self._running.values()):
            del self._running[pusher.one.id]
            task = self._loop.create_task(pusher.close(seconds_max=DRAIN_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        if self._closing:
            await asyncio.wait(set(self._closing))
        if self._timer is not None:
            self._timer.cancel()
