"""Sends one request of a subscription, and returns what came of it."""

import asyncio

from penstock.flow.verdicts import Failure
from penstock.model.errors import PenstockError
from penstock.model.subscription import Subscription
from penstock.net.http.client_messages import FailureReason, RequestFailed, RequestInvalid
from penstock.push.delivery_plan import Plan
from penstock.push.outbound import TENANT_FAILURES
from penstock.push.outcomes import Reply
from penstock.push.published import Published
from penstock.push.push_setup import PushSetup
from penstock.wire.webhooks.delivery_requests import DeliveryRequest


async def send(
    setup: PushSetup, one: Subscription, plan: Plan, request: DeliveryRequest, message: Published
) -> Reply:
    if plan.url is None:
        return await _carry(plan, message)
    try:
        reply = await setup.outbound.send(
            plan.url,
            tenant=one.account,
            timeout_s=plan.timeout_ms / 1_000,
            method=request.method,
            headers=request.headers,
            body=request.body,
            identity=plan.identity,
            may_resend=not plan.is_at_most_once,
        )
    except RequestFailed as error:
        if error.reason is FailureReason.REFUSED_ADDRESS:
            setup.metrics.refused["address"] += 1
        failure = TENANT_FAILURES[error.reason]
        return Reply(failure, failure.value, detail=str(error))
    except RequestInvalid as error:
        return Reply(400, str(error))
    reason = "" if 200 <= reply.status < 300 else f"HTTP status {reply.status}"
    return Reply(reply.status, reason, reply.body, reply.headers.get("retry-after"))


async def _carry(plan: Plan, message: Published) -> Reply:
    """Give a message to a courier."""
    assert plan.carry is not None
    result: int | Failure = Failure.TIMEOUT
    try:
        async with asyncio.timeout(plan.timeout_ms / 1_000):
            result = await plan.carry(message)
    except TimeoutError:
        pass
    except PenstockError as error:
        return Reply(Failure.QUEUE_FAILED, str(error))
    if isinstance(result, Failure):
        return Reply(result, result.value)
    return Reply(result, "" if 200 <= result < 300 else f"HTTP status {result}")
