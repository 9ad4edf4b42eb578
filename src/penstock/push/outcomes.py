"""What becomes of the messages of a subscription after each request.

A delivered message is acked, one to be sent again keeps its lease until then, and one that cannot
be delivered goes to the dead-letter queue. Every attempt becomes a row of ``__deliveries``."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from penstock.flow.backoff import retry_after_ms
from penstock.flow.verdicts import Action, Failure, Health, Verdict, judge
from penstock.model.errors import InvalidRequest, PenstockError, TopicNotFound
from penstock.model.message import AckReason, Delivery
from penstock.model.names import uuid_text
from penstock.model.ports import PushReply, PushStatus
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic
from penstock.push.dead_letters import error_attributes
from penstock.push.delivery_plan import Plan
from penstock.push.metrics import Outcome
from penstock.push.published import Published
from penstock.push.push_setup import PushSetup
from penstock.push.sources import Source, Spawn
from penstock.wire.facts import deliveries as facts
from penstock.wire.webhooks.delivery_requests import DeliveryRequest, failed_items

DEAD_LETTER_RETRY_MS: Final = 20_000
REASON_CHARS_MAX: Final = 256
REPLY_BYTES_MAX: Final = 1_024

log_ = logging.getLogger(__name__)


class Item(msgspec.Struct, frozen=True, gc=False):
    message: Published
    delivery: Delivery | None = None  # None: sent on request, without a lease
    source: Source | None = None
    leased_until_ms: int = 0  # of the monotonic clock
    reply: asyncio.Future[PushReply] | None = None
    is_test: bool = False


class Reply(msgspec.Struct, frozen=True, gc=False):
    result: int | Failure
    reason: str = ""
    body: bytes = b""
    retry_after: str | None = None
    detail: str = ""  # of a failure, for operators: it can contain addresses


class Request(msgspec.Struct, frozen=True, gc=False):
    """What is known about a request when its reply has come."""

    made: DeliveryRequest | None  # None: no request could be made
    ended_at_ms: int
    took_ms: int = 0
    size: int = 0  # bytes for each message


class Outcomes:
    def __init__(
        self, one: Subscription, topic: Topic, plan: Plan, setup: PushSetup, spawn: Spawn
    ) -> None:
        self.one, self.topic, self.plan = one, topic, plan
        self.status = PushStatus()
        self._setup, self._spawn = setup, spawn
        self._logged = ""  # why the endpoint cannot be used

    def judge(self, items: Sequence[Item], request: Request, reply: Reply) -> Health:
        """Decide what becomes of each message, and return what the reply says of the endpoint."""
        now_ms, result = request.ended_at_ms, reply.result
        failed: Collection[int] = ()
        if request.made is not None and isinstance(result, int) and 200 <= result < 300:
            failed = frozenset(failed_items(request.made, reply.body))
        wait_ms = retry_after_ms(reply.retry_after, now_ms=now_ms)
        health = Health.GOOD
        for place, item in enumerate(items):
            own = reply
            if place in failed:
                own = Reply(Failure.ITEM_FAILED, Failure.ITEM_FAILED.value)
            verdict = self.verdict(item, own.result, now_ms=now_ms, wait_ms=wait_ms)
            health = verdict.health
            self.settle(item, verdict, own, request)
            if item.reply is not None and not item.reply.done():
                text = reply.body[:REPLY_BYTES_MAX].decode("utf-8", "replace")
                item.reply.set_result(PushReply(_status(own), request.took_ms, own.reason, text))
        self._note_health(health, reply, now_ms)
        return health

    def verdict(
        self, item: Item, result: int | Failure, *, now_ms: int, wait_ms: int | None = None
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

    def _note_health(self, health: Health, reply: Reply, now_ms: int) -> None:
        change = msgspec.structs.replace
        if health is Health.GOOD:
            self.status = change(self.status, failing_since_ms=0, delivered_at_ms=now_ms)
            self._logged = ""
            return
        if reply.result is Failure.UNUSABLE and reply.detail != self._logged:
            self._logged = reply.detail  # the reason is logged once, until it changes
            about = {"subscription": self.one.id, "tenant": self.one.account}
            log_.warning("endpoint refused", extra={**about, "reason": reply.detail})
        since_ms = self.status.failing_since_ms or now_ms
        reason = reply.reason[:REASON_CHARS_MAX]
        self.status = change(
            self.status, failing_since_ms=since_ms, failed_at_ms=now_ms, reason=reason
        )
        pause_ms = self.plan.auto_pause_ms
        if pause_ms and now_ms - since_ms >= pause_ms and self.one.paused is None:
            self._spawn(self._pause("failing"), "pause")

    async def _pause(self, why: str) -> None:
        def paused(current: Subscription) -> Subscription:
            return current if current.paused else msgspec.structs.replace(current, paused=why)

        try:
            await self._setup.subscriptions.change(self.one.id, paused)
            log_.warning("subscription paused", extra={"subscription": self.one.id, "reason": why})
        except PenstockError as error:
            self.log(logging.WARNING, "pausing a subscription failed", error)

    def settle(self, item: Item, verdict: Verdict, reply: Reply, request: Request) -> None:
        source, delivery, action = item.source, item.delivery, verdict.action
        is_final = self.plan.is_at_most_once or delivery is None  # there is no other attempt
        outcome, next_ms = facts.DELIVERED, 0
        if action is Action.RETRY and not is_final:
            is_refused = reply.result is Failure.UNUSABLE
            outcome = facts.REFUSED if is_refused else facts.RETRY
            next_ms = request.ended_at_ms + verdict.delay_ms
        elif action is not Action.DELIVERED:
            outcome = facts.DROPPED
        if action is Action.PAUSE:
            self._spawn(self._pause("gone"), "pause")
        if source is None or delivery is None or self.plan.is_at_most_once:
            self._note(item, outcome, reply, request, next_ms)
        elif outcome == facts.DROPPED:
            self._spawn(self._give_up(source, item, delivery, reply, request), "give up")
        else:
            self._note(item, outcome, reply, request, next_ms)
            if action is Action.DELIVERED:
                source.ack(delivery)
            else:
                source.extend(delivery, verdict.delay_ms)

    def _note(
        self, item: Item, outcome: str, reply: Reply, request: Request, next_ms: int = 0
    ) -> None:
        """Add the row of an attempt, and count it."""
        self._setup.note(self._row(item, outcome, reply, request, next_ms))
        setup, protocol = self._setup, self.one.protocol
        outcome = facts.RETRY if outcome == facts.REFUSED else outcome
        setup.metrics.attempt(protocol, Outcome(outcome))
        durations = setup.metrics.durations.get(self.plan.destination[0])
        if durations is not None and request.made is not None:
            durations.observe(request.took_ms / 1_000)
        is_delivered = outcome == facts.DELIVERED
        setup.count(self.topic, protocol, 1, int(is_delivered), request.size * is_delivered)

    def _row(
        self, item: Item, outcome: str, reply: Reply, request: Request, next_ms: int
    ) -> facts.DeliveryRow:
        one, record = self.one, item.message.record
        delivery, source = item.delivery, item.source
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
            is_replay=not item.is_test and (source is None or source.replay is not None),
            is_test=item.is_test,
            share=source.topic.topic_id if source is not None and source.topic.is_share else "",
        )

    async def _give_up(
        self,
        source: Source,
        item: Item,
        delivery: Delivery,
        reply: Reply,
        request: Request,
    ) -> None:
        """Append a message to the dead-letter queue, if there is one, and ack it. The reason of the
        ack says what became of the message even if its row is lost."""
        one, message, name = self.one, item.message, self.plan.dead_letter
        body, attributes = message.body, dict(message.attributes)
        if one.webhook:
            attributes |= error_attributes(
                reason=reply.reason, status=_status(reply), attempts=delivery.attempt, one=one
            )
        elif request.made is not None and request.made.body != body:
            body, attributes = request.made.body, {}  # SNS keeps the form of the delivery
        outcome, why = facts.DROPPED, AckReason.DROPPED
        try:
            if name:
                stored = message.record.message
                await self._setup.dead_letters.append(
                    one, self.topic, name, stored, body, attributes
                )
                outcome, why = facts.DEAD, AckReason.DEAD
        except (TopicNotFound, InvalidRequest) as error:
            self.log(logging.WARNING, "a message is lost: it has no dead-letter queue", error)
        except PenstockError as error:
            self.log(logging.WARNING, "the dead-letter queue rejected a message", error)
            next_ms = self._setup.clock.wall_ms() + DEAD_LETTER_RETRY_MS
            self._note(item, facts.RETRY, reply, request, next_ms)
            source.extend(delivery, DEAD_LETTER_RETRY_MS)
            return
        self._note(item, outcome, reply, request)
        source.ack(delivery, why)

    def log(self, level: int, event: str, error: Exception) -> None:
        log_.log(level, event, extra={"subscription": self.one.id, "reason": str(error)})


def _status(reply: Reply) -> int:
    return reply.result if isinstance(reply.result, int) else facts.NO_STATUS
