"""Sends the messages of one subscription to its endpoint.

The position of a subscription is a share of its topic: a lease cursor in the log (a webhook that
consumes a queue uses the queue's own). A message is leased when its request has a slot, and not
before, so a slow endpoint keeps its messages in the log and not in memory; only a batch that waits
for more messages has leases without a slot. A delivered message is acked. One that is sent again
keeps its lease until then, so a new home knows when and how often.

A replay is a second share, of a range of the log. Its messages are sent when no new ones are
waiting, in at most half of the slots."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.flow.slots import Slot
from penstock.flow.slots import Subscription as Lane
from penstock.flow.verdicts import Action, Failure, Health
from penstock.model.errors import PenstockError
from penstock.model.message import AckReason
from penstock.model.ports import PushReply, PushStatus
from penstock.model.quotas import NO_LIMIT
from penstock.model.subscription import Replay, Subscription
from penstock.model.topic import Topic
from penstock.push.batches import Batches
from penstock.push.delivery_plan import Plan
from penstock.push.outcomes import Item, Outcomes, Reply, Request
from penstock.push.published import Published
from penstock.push.push_setup import PushSetup
from penstock.push.sending import send
from penstock.push.sources import Source, end_replay, open_share
from penstock.push.tasks import Tasks
from penstock.wire.aws.sns.filter_match import matches
from penstock.wire.webhooks.cloudevents import HeadersTooLong
from penstock.wire.webhooks.delivery_requests import DeliveryRequest

LEASE_MARGIN_MS: Final = 15_000  # a lease outlasts its request by this
RETRIES_MAX: Final = 10_000  # messages of one subscription that wait for another attempt
FULL_SECONDS: Final = 1.0  # until their number is looked at again
COUNTED_AT_ONCE: Final = 100  # messages whose attempts are counted while the breaker is open
LIVE_MS: Final = 1_000  # after a new message, old ones are sent slowly: a few,
REPLAYED_AT_ONCE: Final = 2
REST_SECONDS: Final = 0.002  # then none for this time
OPEN_RETRY_SECONDS: Final = 1.0  # between attempts to open a share
RELEASE_SECONDS: Final = 1.0  # to write results at the end
LEASE_RETRY_SECONDS: Final = 0.5  # after a lease that failed


class Pusher:
    def __init__(
        self,
        one: Subscription,
        topic: Topic,
        plan: Plan,
        setup: PushSetup,
        *,
        kick: Callable[[], None],  # called when slots may be wanted or free
        starts_at_ms: int,  # no request before this time of the monotonic clock
    ) -> None:
        self._tasks = tasks = Tasks(one.id)
        self._spawn, self._later = tasks.spawn, tasks.later
        self.outcomes = Outcomes(one, topic, plan, setup, tasks.spawn)
        self._log = self.outcomes.log
        self._setup, self._kick, self._starts_at_ms = setup, kick, starts_at_ms
        self.lane: Lane = setup.slots.add(
            one.account,
            plan.destination,
            limit=plan.limit,
            rate=plan.rate,
            request_bytes=plan.request_bytes,
        )
        self._sources: list[Source] = []  # the live one first
        self._granted: list[Slot] = []
        self._leased: list[list[Item]] = []  # requests that have leases but no slot
        self._batches = Batches()
        self._singles: list[Item] = []
        self._appetite = 1  # slots to ask for while there are messages
        self._is_filling = self._is_counting = self._is_opening = self._is_closed = False
        self._is_resting = False  # no old messages are sent
        self._wait: asyncio.Task[None] | None = None  # for a batch of a group
        self._open()

    @property
    def one(self) -> Subscription:
        return self.outcomes.one

    @property
    def plan(self) -> Plan:
        return self.outcomes.plan

    @property
    def topic(self) -> Topic:
        return self.outcomes.topic

    @property
    def is_paused(self) -> bool:
        return self.one.paused is not None or self._is_closed

    @property
    def status(self) -> PushStatus:
        lane = self.lane
        return msgspec.structs.replace(
            self.outcomes.status,
            limit=lane.limit,
            in_flight=lane.held,
            is_breaker_open=lane.breaker is not None and lane.breaker.admits_at_ms > 0,
            retries=sum(source.retry_count for source in self._sources),
        )

    def change(self, one: Subscription, plan: Plan) -> None:
        """Use new settings from the next request on."""
        self.outcomes.one, self.outcomes.plan = one, plan
        self._setup.slots.change(
            self.lane,
            plan.destination,
            limit=plan.limit,
            rate=plan.rate,
            request_bytes=plan.request_bytes,
            now_ms=self._setup.clock.mono_ms(),
        )
        if self.is_paused:
            self._release_leased()
        self._open()
        self._want()

    # ── Sources ──────────────────────────────────────────────────────────────────────────────

    def _open(self) -> None:
        """Open the shares that this subscription needs, and leave those that it does not."""
        if not self._is_opening and not self._is_closed:
            self._is_opening = True
            self._spawn(self._open_sources(), "open the share of")

    async def _open_sources(self) -> None:
        try:
            while True:
                replay = self.one.open_replay
                try:
                    if not self._sources:
                        await self._add_source(None)
                    for source in self._sources[1:]:
                        if source.replay != replay:
                            self._sources.remove(source)
                            source.close()
                    if replay is not None and len(self._sources) == 1:
                        await self._add_source(replay)
                except PenstockError as error:
                    self._log(logging.WARNING, "opening the share of a subscription failed", error)
                    await asyncio.sleep(OPEN_RETRY_SECONDS)
                else:
                    if replay == self.one.open_replay:
                        break
        except Exception:
            self._later(OPEN_RETRY_SECONDS, self._open)
            raise
        finally:
            self._is_opening = False
        self._want()

    async def _add_source(self, replay: Replay | None) -> None:
        setup, share = self._setup, self.topic
        if replay is not None or not self.plan.is_consumed:
            share = await open_share(
                self.one, self.topic, replay, setup.broker, is_ordered=self.plan.is_ordered
            )
        source = Source(share, replay, setup.broker, setup.clock, self._spawn, self._want)

        def on_news() -> None:
            self._available(source)
            self._want()

        try:
            await source.listen(on_news)
            delay_ms = self._starts_at_ms - setup.clock.mono_ms()
            await asyncio.sleep(max(0, delay_ms) / 1_000)
        except BaseException:
            source.close()
            raise
        self._sources.append(source)
        self._available(source)

    def _available(self, source: Source) -> None:
        """Let messages of a source be leased. The next messages of a group cannot be leased
        before the first are acked, so a batch of a group waits in the log until it is full."""
        plan = self.plan
        if not (plan.batch_wait_ms and plan.is_ordered and source.replay is None):
            source.has_news = True
        elif self._wait is None or self._wait.done():
            self._wait = self._spawn(self._wait_for_batch(source), "wait for a batch of")

    async def _wait_for_batch(self, source: Source) -> None:
        plan = self.plan
        if await source.fill(plan.batch_max, seconds_max=plan.batch_wait_ms / 1_000):
            source.has_news = True
            self._want()

    def _is_ready(self, source: Source) -> bool:
        has_room = source.replay is None or self._replay_room(source) > 0
        return source.has_news and has_room and not self.is_paused

    def _replay_room(self, source: Source) -> int:
        """Return how many old messages may be sent now. New ones take no longer beside them."""
        room = max(1, self.lane.limit // 2) - source.in_flight
        if not self._is_live:
            return room
        return 0 if self._is_resting else min(room, REPLAYED_AT_ONCE)

    @property
    def _is_live(self) -> bool:
        """Return whether new messages come."""
        return self._setup.clock.mono_ms() - self._sources[0].leased_at_ms <= LIVE_MS

    def _rest(self) -> None:
        self._is_resting = True
        self._later(REST_SECONDS, self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        self._want()

    # ── Slots ────────────────────────────────────────────────────────────────────────────────

    def _want(self) -> None:
        """Ask for as many slots as there may be requests to send."""
        if self._is_closed or not self._sources:  # the last home may still send requests
            return
        count = len(self._singles) + len(self._leased)
        if any(source.retry_count >= RETRIES_MAX for source in self._sources):
            self._later(FULL_SECONDS, self._want)
        elif any(map(self._is_ready, self._sources)):
            # A fixed limit counts requests until their results are in the log.
            held = self.lane.held + sum(source.unwritten for source in self._sources)
            count += min(self._appetite, max(0, (self.plan.limit or NO_LIMIT) - held))
            if self.plan.is_counted and self._is_breaker_open():
                self._count_attempts()
        self._setup.slots.want(self.lane, count, now_ms=self._setup.clock.mono_ms())
        self._kick()

    def granted(self, slot: Slot) -> None:
        self._granted.append(slot)
        if not self._is_filling:
            self._is_filling = True
            self._spawn(self._fill(), "lease messages of")

    async def _fill(self) -> None:
        """Lease messages for the slots that were granted, and send them."""
        try:
            while self._granted:
                slots, self._granted = self._granted, []
                requests: list[list[Item]] = []
                try:
                    await self._take(requests, len(slots))
                except PenstockError as error:
                    self._lease_failed(error)
                finally:
                    room = 0 if self._is_closed else len(slots)
                    self._leased.extend(requests[room:])
                    del requests[room:]
                    for items in requests:
                        self._spawn(self._push(slots.pop(), items), "push a message of")
                    now_ms = self._setup.clock.mono_ms()
                    for slot in slots:
                        self._setup.slots.end(slot, Health.UNKNOWN, now_ms=now_ms)
                self._appetite = 1 if slots else 2 * len(requests)
                self._want()
        finally:
            self._is_filling = False

    def _lease_failed(self, error: PenstockError) -> None:
        self._log(logging.INFO, "leasing messages of a subscription failed", error)
        self._later(LEASE_RETRY_SECONDS, self._lease_again)

    def _lease_again(self) -> None:
        for source in self._sources:
            source.has_news = True
        self._want()

    async def _take(self, requests: list[list[Item]], count: int) -> None:
        """Add up to ``count`` requests to the list; more if a lease returned more groups."""
        requests += [[item] for item in self._singles[:count]]
        del self._singles[:count]
        ends_ms = self._setup.clock.mono_ms() + self.plan.timeout_ms
        while self._leased and len(requests) < count:
            items = self._leased.pop(0)
            if items[0].leased_until_ms >= ends_ms:
                requests.append(items)
            else:  # another lease would begin before the request ends
                self._release(items)
        for source in tuple(self._sources):
            room = count - len(requests)
            if source.replay is not None:
                room = min(room, self._replay_room(source))
            if room > 0 and self._is_ready(source):
                waiting = self._batches.waiting if source.replay is None else ()
                wanted = max(1, room * self.plan.batch_max - len(waiting))
                requests += self._split(source, await self._lease(source, wanted))
                if source.replay is not None and self._is_live:
                    self._rest()

    async def _lease(self, source: Source, count: int) -> Sequence[Item]:
        """Lease messages, and return those that the subscription wants in the form it wants."""
        plan, setup, topic = self.plan, self._setup, self.topic
        group_max = 1 if plan.is_ordered and plan.batch_max == 1 else 0
        lease_ms = plan.batch_wait_ms + plan.timeout_ms + LEASE_MARGIN_MS
        until_ms = setup.clock.mono_ms() + lease_ms
        found = await source.lease(count, lease_ms, group_max=group_max)
        if not found:
            if source.replay is not None:
                self._spawn(self._end_replay(source), "end a replay of")
            return ()
        self._available(source)  # there may be more
        if setup.opener is not None:
            found = await setup.opener.opened(topic, found)
        signer = await setup.signer_of(topic) if plan.is_signed else None
        # The cursor has applied the filter, except to encrypted records and to those of a queue.
        policy = plan.policy
        if not plan.is_consumed and not (setup.opener is not None and setup.opener.is_on(topic)):
            policy = None
        items = []
        for delivery in found:
            message = Published(
                delivery.record,
                topic,
                delivery.partition,
                signer,
                protocol=self.one.protocol,
                endpoint=self.one.endpoint,
                is_replayed=source.replay is not None,
            )
            if policy is None or matches(policy, message.prepared):
                items.append(Item(message, delivery, source, until_ms))
            else:
                source.ack(delivery, AckReason.UNWANTED)
        return items

    def _split(self, source: Source, items: Sequence[Item]) -> list[list[Item]]:
        plan, batches, before = self.plan, self._batches, self._batches.waiting
        # No more messages will come to a replay.
        may_wait = plan.batch_wait_ms > 0 and not plan.is_ordered and source.replay is None
        requests = batches.split(items, plan, may_wait=may_wait)
        source.in_flight += len(requests)
        if batches.waiting is not before:
            self._tasks.not_later(self._end_wait)
        if batches.waiting:
            self._later(plan.batch_wait_ms / 1_000, self._end_wait)
        return requests

    def _end_wait(self) -> None:
        """Send the batch that waits, although it is not full."""
        self._tasks.not_later(self._end_wait)
        if items := self._batches.take():
            self._sources[0].in_flight += 1
            self._leased.append(items)
            self._want()

    def _release_leased(self) -> None:
        self._end_wait()
        while self._leased:
            self._release(self._leased.pop(0))

    def _release(self, items: Sequence[Item]) -> None:
        """Let the messages of a request be leased again."""
        if (source := items[0].source) is not None:
            source.in_flight -= 1
            for delivery in filter(None, (each.delivery for each in items)):
                source.extend(delivery, 0)

    # ── Requests ─────────────────────────────────────────────────────────────────────────────

    async def _push(self, slot: Slot, items: list[Item]) -> None:
        setup, plan, source = self._setup, self.plan, items[0].source
        health = Health.UNKNOWN
        began_ms = setup.clock.mono_ms()
        try:
            if plan.is_at_most_once and source is not None:
                await source.ack_now([each.delivery for each in items if each.delivery is not None])
            made: DeliveryRequest | None = None
            count = 1
            try:
                made = plan.make(
                    [each.message for each in items],
                    now_ms=setup.clock.wall_ms(),
                    is_test=items[0].is_test,
                )
                count = made.count
            except HeadersTooLong as error:
                reply = Reply(400, str(error))
            if count < len(items):  # the rest does not fit in a request
                self._leased.insert(0, items[count:])
                del items[count:]
                if source is not None:
                    source.in_flight += 1
            if made is not None:
                setup.slots.send(slot, len(made.body), now_ms=began_ms)
                reply = await send(setup, self.one, plan, made, items[0].message)
            size = 0 if made is None else len(made.body) // count
            took_ms = setup.clock.mono_ms() - began_ms
            health = self.outcomes.judge(
                items, Request(made, setup.clock.wall_ms(), took_ms, size), reply
            )
        except PenstockError as error:  # the ack before an at-most-once request failed
            self._log(logging.WARNING, "a message was not pushed", error)
        finally:
            if source is not None:
                source.in_flight -= 1
            setup.slots.end(slot, health, now_ms=setup.clock.mono_ms())
            self._want()

    # ── While the circuit breaker is open ────────────────────────────────────────────────────

    def _is_breaker_open(self) -> bool:
        breaker = self.lane.breaker
        return breaker is not None and breaker.admits_at_ms > self._setup.clock.mono_ms()

    def _count_attempts(self) -> None:
        if not self._is_counting:
            self._is_counting = True
            self._spawn(self._count_due(), "count attempts of")

    async def _count_due(self) -> None:
        """Count an attempt for each message that is due, although the breaker prevents it."""
        try:
            while self._is_breaker_open():
                ready = [source for source in self._sources if self._is_ready(source)]
                items = await self._lease(ready[0], COUNTED_AT_ONCE) if ready else ()
                if not items:
                    return
                reply = Reply(Failure.BREAKER_OPEN, Failure.BREAKER_OPEN.value)
                now_ms = self._setup.clock.wall_ms()
                for item in items:
                    verdict = self.outcomes.verdict(item, reply.result, now_ms=now_ms)
                    made = None
                    if verdict.action is not Action.RETRY and not self.one.webhook:
                        made = self.plan.make((item.message,), now_ms=now_ms)
                    self.outcomes.settle(item, verdict, reply, Request(made, now_ms))
        except PenstockError as error:
            self._lease_failed(error)
        finally:
            self._is_counting = False

    # ── Replays and single requests ──────────────────────────────────────────────────────────

    async def _end_replay(self, source: Source) -> None:
        setup = self._setup
        try:
            await end_replay(source, self.one, self.topic, setup.broker, setup.subscriptions)
        except PenstockError as error:
            self._lease_failed(error)

    async def push_one(self, message: Published, *, is_test: bool, seconds_max: float) -> PushReply:
        """Send one message when there is a slot, and return the reply. It is not tried again."""
        reply: asyncio.Future[PushReply] = asyncio.get_running_loop().create_future()
        item = Item(message, reply=reply, is_test=is_test)
        self._singles.append(item)
        self._want()
        try:
            async with asyncio.timeout(seconds_max):
                return await reply
        except TimeoutError:
            why = Failure.BREAKER_OPEN if self._is_breaker_open() else Failure.TIMEOUT
            return PushReply(reason=why.value)
        finally:
            if item in self._singles:
                self._singles.remove(item)

    async def close(self, *, seconds_max: float) -> None:
        """Stop. Requests in progress may go on for ``seconds_max``; then they are cancelled."""
        self._is_closed = True
        slots, clock, tasks = self._setup.slots, self._setup.clock, self._tasks
        slots.remove(self.lane, now_ms=clock.mono_ms())
        if self._wait is not None:
            self._wait.cancel()
        for source in self._sources:
            source.close()
        if seconds_max:
            await tasks.finish(seconds_max)
        else:
            await tasks.cancel()
        self._release_leased()
        await tasks.finish(RELEASE_SECONDS)
        await tasks.cancel()
        for slot in self._granted:
            slots.end(slot, Health.UNKNOWN, now_ms=clock.mono_ms())
        self._kick()
