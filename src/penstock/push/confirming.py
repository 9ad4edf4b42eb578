"""Asks endpoints to confirm their subscriptions, or tells them that they were unsubscribed.

The node that serves the request sends these messages. If it fails before, the client subscribes
again, as with SNS. An endpoint gets three attempts."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.flow.verdicts import Failure
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
from penstock.push.single_requests import ATTEMPTS_MAX, RETRY_SECONDS, SingleRequests
from penstock.wire.aws.sns.notification import (
    Confirmation,
    Signer,
    confirmation_body,
    headers,
    subscribe_url,
)
from penstock.wire.aws.sns.tokens import Token, make_token
from penstock.wire.webhooks.endpoint_url import UrlInvalid, parse_endpoint_url

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
    requests: SingleRequests
    signer_of: Callable[[Topic], Awaitable[Signer | None]]
    secrets_of: Callable[[Subscription], bytes]
    may_send: Callable[[Topic, Topic], bool]
    courier: Courier | None  # of mails


class Confirmations:
    def __init__(self, setup: ConfirmSetup) -> None:
        self._setup = setup
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
        url = parse_endpoint_url(with_password(one.endpoint, self._setup.secrets_of(one)))
        reply = await self._setup.requests.send(
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

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
