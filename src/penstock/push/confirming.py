"""Asks endpoints to confirm their subscriptions, or tells them that they were unsubscribed.

The node that serves the request sends these messages. If it fails before, the client subscribes
again, as with SNS. An endpoint gets three attempts."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.flow.slots import Slot, Slots
from penstock.flow.slots import Subscription as Lane
from penstock.flow.verdicts import Failure, Health
from penstock.model.calls import Append, BrokerPort
from penstock.model.errors import PenstockError
from penstock.model.message import Message
from penstock.model.names import uuid_text
from penstock.model.ports import Catalog, Clock
from penstock.model.sent_message import SentMessage
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic
from penstock.net.http.client_messages import RequestFailed, RequestInvalid
from penstock.push.delivery_plan import HTTP, SNS_TIMEOUT_MS, SQS, Courier, with_password
from penstock.push.outbound import Outbound
from penstock.push.pushers import Granted
from penstock.wire.aws.sns.notification import (
    Confirmation,
    Signer,
    confirmation_body,
    headers,
    subscribe_url,
)
from penstock.wire.aws.sns.tokens import Token, make_token
from penstock.wire.webhooks.endpoint_url import UrlInvalid, parse_endpoint_url

ATTEMPTS_MAX: Final = 3
RETRY_SECONDS: Final = 5.0
WAITING_MAX: Final = 1_000  # confirmations of a node, and of one tenant a tenth of them
TENANT_PART: Final = 10

log_ = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConfirmSetup:
    broker: BrokerPort
    catalog: Catalog
    clock: Clock
    entropy: Callable[[int], bytes]
    token_key: bytes
    outbound: Outbound
    slots: Slots
    signer_of: Callable[[Topic], Awaitable[Signer | None]]
    secrets_of: Callable[[Subscription], bytes]
    may_send: Callable[[Topic, Topic], bool]
    courier: Courier | None  # of mails


class _Turn:
    """Waits for the slot of one request."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.slot: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()

    def granted(self, slot: Slot) -> None:
        self.slot.set_result(slot)


class Confirmations:
    def __init__(
        self,
        setup: ConfirmSetup,
        *,
        lanes: dict[Lane, Granted],  # of all requests of this node
        kick: Callable[[], None],  # called when slots may be wanted or free
    ) -> None:
        self._setup, self._lanes, self._kick = setup, lanes, kick
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_tenant: Counter[str] = Counter()

    def confirm(self, one: Subscription) -> None:
        self._begin(one, is_deleted=False)

    def unsubscribed(self, one: Subscription) -> None:
        self._begin(one, is_deleted=True)

    def _begin(self, one: Subscription, *, is_deleted: bool) -> None:
        tenant = one.account
        if one.paused is not None:
            log_.info("confirmation not sent: paused", extra={"subscription": one.id})
            return
        is_full = len(self._tasks) >= WAITING_MAX
        if is_full or self._by_tenant[tenant] >= WAITING_MAX // TENANT_PART:
            log_.warning("too many confirmations are waiting", extra={"subscription": one.id})
            return
        self._by_tenant[tenant] += 1
        task = asyncio.create_task(self._run(one, is_deleted), name=f"confirm {one.id}")
        self._tasks.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            self._by_tenant -= Counter((tenant,))  # drops a count of 0
            if not task.cancelled() and (error := task.exception()) is not None:
                log_.error("sending a confirmation failed", exc_info=error)

        task.add_done_callback(ended)

    async def _run(self, one: Subscription, is_deleted: bool) -> None:
        setup = self._setup
        topic = setup.catalog.find_id(one.topic_id)
        if topic is None:
            return
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(RETRY_SECONDS)
            try:
                signer = await setup.signer_of(topic)
                assert signer is not None
                confirmation = Confirmation(
                    uuid_text(setup.entropy(16)),
                    one.source_arn,
                    make_token(
                        setup.token_key, Token(one.id, one.region), now_ms=setup.clock.wall_ms()
                    ),
                    setup.clock.wall_ms(),
                    one.base_url,
                    one.arn if is_deleted else None,
                )
                body = confirmation_body(confirmation, signer)
                if one.protocol == SQS:
                    await self._append(one, topic, body)
                elif one.protocol in HTTP:
                    await self._post(one, confirmation, body)
                else:
                    await self._mail(one, confirmation, body)
                return
            except (PenstockError, RequestFailed, RequestInvalid, UrlInvalid) as error:
                reason = str(error)
        about = {"subscription": one.id, "reason": reason}
        log_.warning("an endpoint did not accept a confirmation", extra=about)

    async def _append(self, one: Subscription, topic: Topic, body: bytes) -> None:
        queue = self._setup.catalog.find_arn(one.endpoint)
        if queue is None or not self._setup.may_send(topic, queue):
            return
        message_id = self._setup.entropy(16)
        group = one.id if queue.is_fifo else None
        dedup_id = uuid_text(message_id) if queue.is_fifo else None
        message = Message(message_id, body, None, group, dedup_id, sender=one.account)
        await self._setup.broker.call(Append(queue, 0, (message,)))

    async def _mail(self, one: Subscription, confirmation: Confirmation, body: bytes) -> None:
        if self._setup.courier is None:
            return
        link = subscribe_url(
            confirmation.base_url, topic_arn=confirmation.topic_arn, token=confirmation.token
        )
        text = f"You have chosen to subscribe to the topic {confirmation.topic_arn}.\n{link}"
        message = SentMessage(
            confirmation.message_id,
            one.endpoint,
            text.encode(),
            confirmation.created_at_ms,
            "Subscription confirmation",
            confirmation.topic_arn,
            notification=body,
        )
        result = await self._setup.courier.send(one, message)
        if isinstance(result, Failure) or not 200 <= result < 300:
            raise RequestInvalid(str(result))

    async def _post(self, one: Subscription, confirmation: Confirmation, body: bytes) -> None:
        setup = self._setup
        url = parse_endpoint_url(with_password(one.endpoint, setup.secrets_of(one)))
        destination = (url.scheme, url.host, url.port)
        lane = setup.slots.add(one.account, destination, limit=1, request_bytes=len(body))
        turn = self._lanes[lane] = _Turn(lane)
        health = Health.UNKNOWN
        try:
            setup.slots.want(lane, 1, now_ms=setup.clock.mono_ms())
            self._kick()
            slot = await turn.slot
            setup.slots.send(slot, len(body), now_ms=setup.clock.mono_ms())
            reply = await setup.outbound.send(
                url,
                tenant=one.account,
                timeout_s=SNS_TIMEOUT_MS / 1_000,
                headers=headers(
                    confirmation.kind,
                    message_id=confirmation.message_id,
                    topic_arn=confirmation.topic_arn,
                    subscription_arn=confirmation.unsubscribed_arn,
                ),
                body=body,
            )
            if not 200 <= reply.status < 300:
                raise RequestInvalid(f"HTTP status {reply.status}")
            health = Health.GOOD
        finally:
            now_ms = setup.clock.mono_ms()
            if turn.slot.done() and not turn.slot.cancelled():
                setup.slots.end(turn.slot.result(), health, now_ms=now_ms)
            setup.slots.remove(lane, now_ms=now_ms)
            del self._lanes[lane]
            self._kick()

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
