"""Asks endpoints whether they want messages, as CloudEvents define it for webhooks (the setting
``verify``).

The home of a subscription asks with an OPTIONS request before it sends the first message, and again
every minute until the endpoint agrees. Until then no message is leased. The endpoint can limit the
rate of requests."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from penstock.model.identity import Rate
from penstock.model.subscription import Subscription
from penstock.net.http.client_messages import RequestFailed, RequestInvalid
from penstock.push.delivery_plan import Plan
from penstock.push.outbound import FAILURES, Outbound
from penstock.wire.webhooks.cloudevents import Permission, judge_handshake

ASKED_AT_ONCE: Final = 32  # requests of a node, beside those that have slots
RETRY_SECONDS: Final = 60.0

log_ = logging.getLogger(__name__)


class Permissions:
    def __init__(
        self,
        outbound: Outbound,
        *,
        origin: str,  # DNS name of this cluster
        on_given: Callable[[str], None],  # gets the id of a subscription
    ) -> None:
        self._outbound, self._origin, self._on_given = outbound, origin, on_given
        self._given: dict[str, Permission] = {}  # by subscription id
        self._reasons: dict[str, str] = {}  # why the last request was not successful
        self._asked: dict[str, tuple[Subscription, Plan]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._free = asyncio.Semaphore(ASKED_AT_ONCE)

    def permitted(self, one: Subscription, plan: Plan) -> Plan | None:
        """Return the plan with the rate that the endpoint allows. None: it is asked first, unless
        the subscription is paused."""
        if not plan.handshake:
            self.forget(one.id)
            return plan
        given = self._given.get(one.id)
        if given is None:
            if one.paused is not None:
                self.forget(one.id)
                return None
            self._asked[one.id] = one, plan
            if one.id not in self._tasks:
                work = self._ask(one.id)
                self._tasks[one.id] = asyncio.create_task(work, name=f"ask {one.id}")
            return None
        if given.rate_per_minute is None:
            return plan
        per_s = given.rate_per_minute / 60
        if plan.rate is not None and plan.rate.per_s <= per_s:
            return plan
        return dataclasses.replace(plan, rate=Rate(per_s, max(1.0, per_s)))

    def reason(self, subscription_id: str) -> str | None:
        """Return why nothing is sent to an endpoint that is being asked."""
        if subscription_id not in self._tasks:
            return None
        return self._reasons.get(subscription_id, "there is no reply yet")

    def forget(self, subscription_id: str) -> None:
        task = self._tasks.pop(subscription_id, None)
        if task is not None:
            task.cancel()
        for table in (self._given, self._reasons, self._asked):
            table.pop(subscription_id, None)

    async def _ask(self, subscription_id: str) -> None:
        while True:
            async with self._free:
                permission = await self._request(*self._asked[subscription_id])
            if permission.is_given:
                break
            self._reasons[subscription_id] = permission.reason
            about = {"subscription": subscription_id, "reason": permission.reason}
            log_.warning("an endpoint does not permit messages", extra=about)
            await asyncio.sleep(RETRY_SECONDS)
        del self._tasks[subscription_id]
        self._given[subscription_id] = permission
        self._on_given(subscription_id)

    async def _request(self, one: Subscription, plan: Plan) -> Permission:
        assert plan.url is not None, "a webhook has a URL"
        try:
            reply = await self._outbound.send(
                plan.url,
                tenant=one.account,
                timeout_s=plan.timeout_ms / 1_000,
                method="OPTIONS",
                headers=plan.handshake,
                identity=plan.identity,
            )
        except RequestFailed as failed:
            return Permission(False, reason=FAILURES[failed.reason].value)
        except RequestInvalid as error:
            return Permission(False, reason=str(error))
        return judge_handshake(reply.status, reply.headers, origin=self._origin)

    def stop(self) -> None:
        for subscription_id in tuple(self._tasks):
            self.forget(subscription_id)
