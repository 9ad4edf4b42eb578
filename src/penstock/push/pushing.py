"""Sends the messages of one subscription to its endpoint.

The position of a subscription is a share of its topic: a lease cursor in the log (a webhook that
consumes a queue uses the queue's own). A message is leased when its request has a slot, and not
before, so a slow endpoint keeps its messages in the log and not in memory. A delivered message is
acked. One that has to be sent again keeps its lease until then: time and number of the attempt are
in the log and outlast this node. A message that cannot be delivered goes to the dead-letter queue.

A replay is a second share, of a range of the log. Its messages are sent when no new ones are
waiting, in at most half of the slots."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from penstock.flow.backoff import retry_after_ms
from penstock.flow.slots import Slot, Slots
from penstock.flow.slots import Subscription as Lane
from penstock.flow.verdicts import Action, Failure, Health, Verdict, judge
from penstock.model.calls import BrokerPort, CloseShare, ShareLag
from penstock.model.errors import PenstockError, TopicNotFound
from penstock.model.message import Delivery
from penstock.model.names import uuid_text
from penstock.model.ports import Clock, PushReply, PushStatus, Subscriptions
from penstock.model.subscription import Replay, ReplayState, Subscription, share_group
from penstock.model.topic import Topic
from penstock.net.http.client_messages import FailureReason, RequestFailed, RequestInvalid
from penstock.push.dead_letters import DeadLetters, error_attributes
from penstock.push.delivery_plan import Plan
from penstock.push.outbound import Outbound
from penstock.push.published import Published
from penstock.push.sources import Source, open_share
from penstock.wire.aws.sns.filter_match import matches
from penstock.wire.aws.sns.notification import Signer
from penstock.wire.facts import deliveries as facts
from penstock.wire.webhooks.cloudevents import HeadersTooLong
from penstock.wire.webhooks.delivery_requests import DeliveryRequest, failed_items

LEASE_MARGIN_MS: Final = 15_000  # a lease outlasts its request by this
RETRIES_MAX: Final = 10_000  # messages of one subscription that wait for another attempt
COUNTED_AT_ONCE: Final = 100  # messages whose attempts are counted while the breaker is open
OPEN_RETRY_SECONDS: Final = 1.0  # between attempts to open a share
LEASE_RETRY_SECONDS: Final = 0.5  # after a lease that failed
DEAD_LETTER_RETRY_MS: Final = 20_000
REASON_CHARS_MAX: Final = 256
REPLY_BYTES_MAX: Final = 1_024

_FAILURES: Final = {
    FailureReason.DNS: Failure.NOT_RESOLVED,
    FailureReason.REFUSED_ADDRESS: Failure.NOT_ALLOWED,
    FailureReason.CONNECT: Failure.NOT_CONNECTED,
    FailureReason.TLS: Failure.TLS,
    FailureReason.TIMEOUT: Failure.TIMEOUT,
    FailureReason.PROTOCOL: Failure.BAD_REPLY,
    FailureReason.RESET: Failure.CONNECTION_LOST,
    FailureReason.HEAD_TOO_LARGE: Failure.BAD_REPLY,
}

log_ = logging.getLogger(__name__)


class Opener(Protocol):
    """Decrypts messages. Implemented by the frontend, because brokers have no keys."""

    def is_on(self, topic: Topic) -> bool: ...

    async def opened(self, topic: Topic, deliveries: Sequence[Delivery]) -> Sequence[Delivery]: ...

    async def opened_fetch(self, topic: Topic, partition: int, fetched: Any) -> Any: ...


@dataclass(frozen=True)
class PushSetup:
    broker: BrokerPort  # of all nodes
    subscriptions: Subscriptions
    clock: Clock
    chance: Callable[[], float]  # returns a random number in [0, 1)
    opener: Opener | None
    outbound: Outbound
    slots: Slots
    signer_of: Callable[[Topic], Awaitable[Signer | None]]
    dead_letters: DeadLetters
    note: Callable[[facts.DeliveryRow], None]


class _Item(msgspec.Struct, frozen=True, gc=False):
    message: Published
    delivery: Delivery | None = None  # None: sent on request, without a lease
    source: Source | None = None
    reply: asyncio.Future[PushReply] | None = None
    is_test: bool = False


class _Reply(msgspec.Struct, frozen=True, gc=False):
    result: int | Failure
    reason: str = ""
    body: bytes = b""
    retry_after: str | None = None


class _Request(msgspec.Struct, frozen=True, gc=False):
    """What is known about a request when its reply has come."""

    made: DeliveryRequest | None  # None: no request could be made
    ended_at_ms: int
    took_ms: int = 0
    size: int = 0  # bytes for each message


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
        self.one, self.topic, self.plan = one, topic, plan
        self._setup, self._kick = setup, kick
        self._starts_at_ms = starts_at_ms
        self.lane: Lane = setup.slots.add(
            one.account,
            plan.destination,
            limit=plan.limit,
            rate=plan.rate,
            request_bytes=plan.request_bytes,
        )
        self._sources: list[Source] = []  # the live one first
        self._granted: list[Slot] = []
        self._leased: deque[list[_Item]] = deque()  # requests that have leases but no slot
        self._singles: deque[_Item] = deque()
        self._appetite = 1  # slots to ask for while there are messages
        self._is_filling = self._is_counting = self._is_opening = self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._loop = asyncio.get_running_loop()
        self._status = PushStatus()
        self._open()

    @property
    def is_paused(self) -> bool:
        return self.one.paused is not None or self._is_closed

    @property
    def status(self) -> PushStatus:
        lane = self.lane
        return msgspec.structs.replace(
            self._status,
            limit=lane.limit,
            in_flight=lane.held,
            is_breaker_open=lane.breaker is not None and lane.breaker.admits_at_ms > 0,
            retries=sum(source.retry_count for source in self._sources),
        )

    def change(self, one: Subscription, plan: Plan) -> None:
        """Use new settings from the next request on."""
        self.one, self.plan = one, plan
        self._setup.slots.change(
            self.lane,
            plan.destination,
            limit=plan.limit,
            rate=plan.rate,
            request_bytes=plan.request_bytes,
            now_ms=self._setup.clock.mono_ms(),
        )
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
                replay = self._wanted_replay()
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
                    if replay == self._wanted_replay():
                        break
        finally:
            self._is_opening = False
        self._want()

    def _wanted_replay(self) -> Replay | None:
        return next((each for each in self.one.replays if each.is_open), None)

    async def _add_source(self, replay: Replay | None) -> None:
        setup, share = self._setup, self.topic
        if replay is not None or not self.plan.is_consumed:
            share = await open_share(
                self.one, self.topic, replay, setup.broker, is_ordered=self.plan.is_ordered
            )
        source = Source(share, replay, setup.broker, setup.clock, self._spawn)
        try:
            await source.listen(self._available)
            delay_ms = self._starts_at_ms - setup.clock.mono_ms()
            if delay_ms > 0:
                await asyncio.sleep(delay_ms / 1_000)
        except BaseException:
            source.close()
            raise
        self._sources.append(source)

    def _available(self) -> None:
        """Ask for slots, because there are messages. A batch may wait for more of them."""
        if self.plan.batch_wait_ms and not self._is_filling:
            self._later(self.plan.batch_wait_ms / 1_000, self._want)
        else:
            self._want()

    def _is_ready(self, source: Source) -> bool:
        if not source.has_news or self.is_paused or source.retry_count >= RETRIES_MAX:
            return False
        return source.replay is None or source.in_flight < max(1, self.lane.limit // 2)

    # ── Slots ────────────────────────────────────────────────────────────────────────────────

    def _want(self) -> None:
        """Ask for as many slots as there may be requests to send."""
        if self._is_closed:
            return
        count = len(self._singles) + len(self._leased)
        if any(map(self._is_ready, self._sources)):
            count += self._appetite
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
                requests: list[list[_Item]] = []
                try:
                    await self._take(requests, len(slots))
                except PenstockError as error:
                    self._lease_failed(error)
                finally:
                    self._leased.extend(requests[len(slots) :])
                    del requests[len(slots) :]
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

    async def _take(self, requests: list[list[_Item]], count: int) -> None:
        """Add up to ``count`` requests to the list; more if a lease returned more groups."""
        while self._singles and len(requests) < count:
            requests.append([self._singles.popleft()])
        while self._leased and len(requests) < count:
            requests.append(self._leased.popleft())
        for source in tuple(self._sources):
            room = count - len(requests)
            if source.replay is not None:
                room = min(room, max(1, self.lane.limit // 2) - source.in_flight)
            if room > 0 and self._is_ready(source):
                requests += self._split(source, await self._lease(source, room))

    async def _lease(self, source: Source, requests: int) -> Sequence[_Item]:
        """Lease messages, and return those that the subscription wants in the form it wants."""
        plan, setup, topic = self.plan, self._setup, self.topic
        group_max = 1 if plan.is_ordered and plan.batch_max == 1 else 0
        lease_ms = plan.timeout_ms + LEASE_MARGIN_MS
        found = await source.lease(requests * plan.batch_max, lease_ms, group_max=group_max)
        if not found:
            if source.replay is not None:
                self._spawn(self._end_replay(source, source.replay), "end a replay of")
            return ()
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
                is_replayed=source.replay is not None,
            )
            if policy is None or matches(policy, message.prepared):
                items.append(_Item(message, delivery, source))
            else:
                source.ack(delivery)
        return items

    def _split(self, source: Source, items: Sequence[_Item]) -> list[list[_Item]]:
        """Divide messages into requests. A batch of an ordered subscription has one group only."""
        plan, requests = self.plan, list[list[_Item]]()
        last: object = None
        for item in items:
            message = item.message
            group = (message.partition, message.record.message.group) if plan.is_ordered else None
            if requests and len(requests[-1]) < plan.batch_max and group == last:
                requests[-1].append(item)
            else:
                requests.append([item])
            last = group
        source.in_flight += len(requests)
        return requests

    # ── Requests ─────────────────────────────────────────────────────────────────────────────

    async def _push(self, slot: Slot, items: list[_Item]) -> None:
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
                reply = _Reply(400, str(error))
            if count < len(items):  # the rest does not fit in a request
                self._leased.appendleft(items[count:])
                del items[count:]
                if source is not None:
                    source.in_flight += 1
            if made is not None:
                setup.slots.send(slot, len(made.body), now_ms=began_ms)
                reply = await self._send(made)
            size = 0 if made is None else len(made.body) // count
            took_ms = setup.clock.mono_ms() - began_ms
            health = self._judge(items, _Request(made, setup.clock.wall_ms(), took_ms, size), reply)
        except PenstockError as error:  # the ack before an at-most-once request failed
            self._log(logging.WARNING, "a message was not pushed", error)
        finally:
            if source is not None:
                source.in_flight -= 1
            setup.slots.end(slot, health, now_ms=setup.clock.mono_ms())
            self._want()

    async def _send(self, request: DeliveryRequest) -> _Reply:
        plan = self.plan
        try:
            reply = await self._setup.outbound.send(
                plan.url,
                tenant=self.one.account,
                timeout_s=plan.timeout_ms / 1_000,
                method=request.method,
                headers=request.headers,
                body=request.body,
                identity=plan.identity,
                may_resend=not plan.is_at_most_once,
            )
        except RequestFailed as error:
            if error.reason is FailureReason.REFUSED_ADDRESS:
                self._log(logging.WARNING, "the address of an endpoint is not allowed", error)
            failure = _FAILURES[error.reason]
            return _Reply(failure, failure.value)
        except RequestInvalid as error:
            return _Reply(400, str(error))
        reason = "" if 200 <= reply.status < 300 else f"HTTP status {reply.status}"
        return _Reply(reply.status, reason, reply.body, reply.headers.get("retry-after"))

    # ── Results ──────────────────────────────────────────────────────────────────────────────

    def _judge(self, items: Sequence[_Item], request: _Request, reply: _Reply) -> Health:
        """Decide what becomes of each message, and return what the reply says of the endpoint."""
        now_ms, result = request.ended_at_ms, reply.result
        failed: Sequence[int] = ()
        if request.made is not None and isinstance(result, int) and 200 <= result < 300:
            failed = failed_items(request.made, reply.body)
        wait_ms = retry_after_ms(reply.retry_after, now_ms=now_ms)
        health = Health.GOOD
        for place, item in enumerate(items):
            own = reply
            if place in failed:
                own = _Reply(Failure.ITEM_FAILED, Failure.ITEM_FAILED.value)
            verdict = self._verdict(item, own.result, now_ms=now_ms, wait_ms=wait_ms)
            health = verdict.health
            self._settle(item, verdict, own, request)
            if item.reply is not None and not item.reply.done():
                text = reply.body[:REPLY_BYTES_MAX].decode("utf-8", "replace")
                item.reply.set_result(PushReply(_status(own), request.took_ms, own.reason, text))
        self._note_health(health, reply, now_ms)
        return health

    def _verdict(
        self, item: _Item, result: int | Failure, *, now_ms: int, wait_ms: int | None = None
    ) -> Verdict:
        plan, chance, delivery = self.plan, self._setup.chance(), item.delivery
        return judge(
            plan.kind,
            result,
            attempt=1 if delivery is None else delivery.attempt,
            age_ms=max(0, now_ms - item.message.record.sent_at_ms),
            schedule=lambda attempt, age_ms: plan.delay_ms(attempt, age_ms, chance),
            retry_after_ms=wait_ms,
        )

    def _note_health(self, health: Health, reply: _Reply, now_ms: int) -> None:
        change = msgspec.structs.replace
        if health is Health.GOOD:
            self._status = change(self._status, failing_since_ms=0, delivered_at_ms=now_ms)
            return
        since_ms = self._status.failing_since_ms or now_ms
        reason = reply.reason[:REASON_CHARS_MAX]
        self._status = change(
            self._status, failing_since_ms=since_ms, failed_at_ms=now_ms, reason=reason
        )
        pause_ms = self.plan.auto_pause_ms
        if pause_ms and now_ms - since_ms >= pause_ms and not self.is_paused:
            self._spawn(self._pause("failing"), "pause")

    async def _pause(self, why: str) -> None:
        def paused(current: Subscription) -> Subscription:
            return current if current.paused else msgspec.structs.replace(current, paused=why)

        try:
            self.one = await self._setup.subscriptions.change(self.one.id, paused)
            log_.warning("subscription paused", extra={"subscription": self.one.id, "reason": why})
        except PenstockError as error:
            self._log(logging.WARNING, "pausing a subscription failed", error)

    def _settle(self, item: _Item, verdict: Verdict, reply: _Reply, request: _Request) -> None:
        source, delivery, action = item.source, item.delivery, verdict.action
        is_final = self.plan.is_at_most_once or delivery is None  # there is no other attempt
        outcome, next_ms = facts.DELIVERED, 0
        if action is Action.RETRY and not is_final:
            is_refused = reply.result is Failure.NOT_ALLOWED
            outcome = facts.REFUSED if is_refused else facts.RETRY
            next_ms = request.ended_at_ms + verdict.delay_ms
        elif action is not Action.DELIVERED:
            outcome = facts.DROPPED if is_final or not self.plan.dead_letter else facts.DEAD
        self._setup.note(self._row(item, outcome, reply, request, next_ms))
        if action is Action.PAUSE:
            self._spawn(self._pause("gone"), "pause")
        if source is None or delivery is None or self.plan.is_at_most_once:
            return
        if action is Action.DELIVERED:
            source.ack(delivery)
        elif action is Action.RETRY:
            source.extend(delivery, verdict.delay_ms)
        else:
            self._spawn(self._give_up(source, item, delivery, reply, request), "give up")

    def _row(
        self, item: _Item, outcome: str, reply: _Reply, request: _Request, next_ms: int
    ) -> facts.DeliveryRow:
        one, record, delivery = self.one, item.message.record, item.delivery
        return facts.DeliveryRow(
            at_ms=request.ended_at_ms,
            tenant=one.account,
            region=one.region,
            subscription=one.id,
            topic=self.topic.name,
            partition=item.message.partition,
            offset=record.offset,
            message_id=uuid_text(record.message.message_id),
            attempt=1 if delivery is None else delivery.attempt,
            outcome=outcome,
            status=_status(reply),
            ms=request.took_ms,
            bytes=request.size,
            reason=reply.reason[:REASON_CHARS_MAX],
            next_ms=next_ms,
            is_replay=item.source is not None and item.source.replay is not None,
            is_test=item.is_test,
        )

    async def _give_up(
        self,
        source: Source,
        item: _Item,
        delivery: Delivery,
        reply: _Reply,
        request: _Request,
    ) -> None:
        """Append a message to the dead-letter queue, if there is one, and ack it."""
        one, message, name = self.one, item.message, self.plan.dead_letter
        body, attributes = message.body, dict(message.attributes)
        if one.webhook:
            attributes |= error_attributes(
                reason=reply.reason, status=_status(reply), attempts=delivery.attempt, one=one
            )
        elif request.made is not None and request.made.body != body:
            body, attributes = request.made.body, {}  # SNS keeps the form of the delivery
        try:
            if name:
                stored = message.record.message
                await self._setup.dead_letters.append(
                    one, self.topic, name, stored, body, attributes
                )
        except TopicNotFound as error:
            self._log(logging.WARNING, "a message is lost: it has no dead-letter queue", error)
        except PenstockError as error:
            self._log(logging.WARNING, "the dead-letter queue rejected a message", error)
            source.extend(delivery, DEAD_LETTER_RETRY_MS)
            return
        source.ack(delivery)

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
                reply = _Reply(Failure.BREAKER_OPEN, Failure.BREAKER_OPEN.value)
                now_ms = self._setup.clock.wall_ms()
                for item in items:
                    verdict = self._verdict(item, reply.result, now_ms=now_ms)
                    made = None
                    if verdict.action is not Action.RETRY and not self.one.webhook:
                        made = self.plan.make((item.message,), now_ms=now_ms)
                    self._settle(item, verdict, reply, _Request(made, now_ms))
        except PenstockError as error:
            self._lease_failed(error)
        finally:
            self._is_counting = False

    # ── Replays and single requests ──────────────────────────────────────────────────────────

    async def _end_replay(self, source: Source, replay: Replay) -> None:
        """End a replay if all messages of its range are finished."""
        broker, subscriptions = self._setup.broker, self._setup.subscriptions
        try:
            for partition in range(len(replay.until)):
                if await broker.call(ShareLag(source.topic, partition)):
                    return
            done = msgspec.structs.replace(replay, state=ReplayState.COMPLETED)

            def completed(current: Subscription) -> Subscription:
                replays = tuple(done if each == replay else each for each in current.replays)
                return msgspec.structs.replace(current, replays=replays)

            await subscriptions.change(self.one.id, completed)
            await broker.call(CloseShare(self.topic, share_group(self.one, replay.number)))
        except PenstockError as error:
            self._lease_failed(error)

    async def push_one(self, message: Published, *, is_test: bool, seconds_max: float) -> PushReply:
        """Send one message when there is a slot, and return the reply. It is not tried again."""
        reply: asyncio.Future[PushReply] = self._loop.create_future()
        item = _Item(message, reply=reply, is_test=is_test)
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

    # ── Tasks ────────────────────────────────────────────────────────────────────────────────

    def _log(self, level: int, event: str, error: Exception) -> None:
        log_.log(level, event, extra={"subscription": self.one.id, "reason": str(error)})

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            work()

        timer = self._loop.call_later(seconds, run)
        self._timers.add(timer)

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = self._loop.create_task(work, name=f"{what} {self.one.id}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_.error("a task of a subscription failed", exc_info=error)

    async def close(self, *, seconds_max: float) -> None:
        """Stop. Requests in progress may go on for ``seconds_max``; then they are cancelled."""
        self._is_closed = True
        slots, clock = self._setup.slots, self._setup.clock
        slots.remove(self.lane, now_ms=clock.mono_ms())
        for timer in self._timers:
            timer.cancel()
        for source in self._sources:
            source.close()
        if seconds_max:
            for items in self._leased:
                for item in items:
                    if item.source is not None and item.delivery is not None:
                        item.source.extend(item.delivery, 0)
            if self._tasks:
                await asyncio.wait(set(self._tasks), timeout=seconds_max)
        self._leased.clear()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        for slot in self._granted:
            slots.end(slot, Health.UNKNOWN, now_ms=clock.mono_ms())
        self._granted.clear()
        self._kick()


def _status(reply: _Reply) -> int:
    return reply.result if isinstance(reply.result, int) else facts.NO_STATUS
