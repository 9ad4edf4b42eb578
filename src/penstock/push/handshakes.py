"""Asks endpoints of webhooks with ``verify: cloudevents`` for permission, before the first message.

The home of a webhook asks, and writes the reply to the metadata store. A webhook without a reply is
asked again by its next home. A refusal stays until an operator asks again or changes a setting."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from penstock.model.errors import NotFound, PenstockError
from penstock.model.ports import Clock, Subscriptions
from penstock.model.subscription import Subscription, SubscriptionState, WebhookPermission
from penstock.net.http.client_messages import FailureReason, RequestFailed, RequestInvalid
from penstock.push.delivery_plan import Plan
from penstock.push.metrics import PushMetrics
from penstock.push.outbound import TENANT_FAILURES
from penstock.push.single_requests import ATTEMPTS_MAX, RETRY_SECONDS, SingleRequests
from penstock.wire.webhooks.cloudevents import judge_handshake

TOO_MANY: Final = 429  # asked again, as after an error of the server

log_ = logging.getLogger(__name__)


class Handshakes:
    """At most one handshake of each webhook, so there are no more of them than pushers."""

    def __init__(
        self,
        requests: SingleRequests,
        subscriptions: Subscriptions,
        clock: Clock,
        metrics: PushMetrics,
        *,
        origin: str,  # DNS name of this cluster
    ) -> None:
        self._requests, self._subscriptions = requests, subscriptions
        self._clock, self._metrics, self._origin = clock, metrics, origin
        self._tasks: set[asyncio.Task[None]] = set()
        # Handshakes without a reply yet, by subscription id.
        self._asking: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}

    def ask(self, one: Subscription, plan: Plan) -> None:
        """Ask the endpoint, unless it is being asked with the same settings."""
        known = self._asking.get(one.id)
        if known is not None and _is_same(known[0], one) and not known[1].done():
            return
        self.cancel(one.id)
        task = asyncio.create_task(self._run(one, plan), name=f"handshake {one.id}")
        self._asking[one.id] = (one, task)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self, subscription_id: str) -> None:
        _, task = self._asking.pop(subscription_id, (None, None))
        if task is not None:
            task.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_.error("asking an endpoint for permission failed", exc_info=error)

    async def _run(self, one: Subscription, plan: Plan) -> None:
        permission = await self._permission(one, plan)
        del self._asking[one.id]  # from now on, a change of the subscription does not cancel this
        about = {"subscription": one.id, "reason": permission.reason}
        log_.info("permission given" if permission.is_given else "permission refused", extra=about)
        while True:
            try:
                await self._subscriptions.change(one.id, self._decided(one, permission))
            except NotFound:
                return
            except PenstockError as error:
                about = {"subscription": one.id, "reason": str(error)}
                log_.warning("writing the reply to a handshake failed", extra=about)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _decided(
        self, one: Subscription, permission: WebhookPermission
    ) -> Callable[[Subscription], Subscription]:
        now_ms = self._clock.wall_ms()

        def decided(current: Subscription) -> Subscription:
            if not (current.needs_permission and _is_same(current, one)):
                return current
            if not permission.is_given:
                return replace(current, permission=permission)
            return replace(
                current,
                permission=permission,
                state=SubscriptionState.CONFIRMED,
                confirmed_at_ms=now_ms,
            )

        return decided

    async def _permission(self, one: Subscription, plan: Plan) -> WebhookPermission:
        """Return the reply of the endpoint. An endpoint that cannot reply has three attempts."""
        assert plan.url is not None
        found = WebhookPermission(False)
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(RETRY_SECONDS)
            try:
                reply = await self._requests.send(
                    plan.url,
                    tenant=one.account,
                    timeout_s=plan.timeout_ms / 1_000,
                    method="OPTIONS",
                    headers=plan.handshake,
                    identity=plan.identity,
                )
            except RequestFailed as error:
                if error.reason is FailureReason.REFUSED_ADDRESS:
                    self._metrics.refused["address"] += 1
                found = WebhookPermission(False, reason=TENANT_FAILURES[error.reason].value)
            except RequestInvalid as error:
                return WebhookPermission(False, reason=str(error))
            else:
                found = judge_handshake(reply.status, reply.headers, origin=self._origin)
                if reply.status < 500 and reply.status != TOO_MANY:
                    break
        return found

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))


def _is_same(one: Subscription, other: Subscription) -> bool:
    """Return whether two versions of a subscription send the same request."""
    return (one.webhook, one.secrets) == (other.webhook, other.secrets)
