"""Webhooks whose endpoint must give its permission first."""

from typing import Any

import msgspec
import pytest
from tests.harness.endpoint import Endpoint, Step
from tests.unit.push.stage import PushStage, until

from penstock.model.identity import Rate
from penstock.model.subscription import Subscription, SubscriptionState, WebhookPermission
from penstock.push import handshakes

ORIGIN = "penstock.example"  # of the stage
ASKED = {"verify": "cloudevents"}
YES = Step(headers={"WebHook-Allowed-Origin": ORIGIN})
PENDING, CONFIRMED = SubscriptionState.PENDING, SubscriptionState.CONFIRMED


@pytest.fixture(autouse=True)
def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "RETRY_SECONDS", 0.01)


async def replied(push: PushStage, one: Subscription) -> Subscription:
    """Wait for a permission or a refusal."""
    await until(lambda: push.stored(one).permission is not None, "there is no reply")
    return push.stored(one)


def methods(push: PushStage) -> list[str]:
    return [each.method for each in push.ledger()]


async def test_an_endpoint_is_asked_before_the_first_message(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/first", msgspec.structs.replace(YES, hold=True), Step())
    auth = {"type": "bearer", "token": "t"}
    webhook = {**ASKED, "rate_per_s": 2.5, "headers": {"x-team": "shop"}, "auth": auth}
    one = await push.subscribe(topic, "/first", webhook=webhook)
    await push.publish(topic, "1", "2")
    [asked] = await push.seen(1)
    assert (asked.method, asked.target, asked.body) == ("OPTIONS", "/first", "")
    assert asked.headers["webhook-request-origin"] == ORIGIN
    assert asked.headers["webhook-request-rate"] == "150"
    assert (asked.headers["x-team"], asked.headers["authorization"]) == ("shop", "Bearer t")
    assert push.stored(one).state is PENDING
    endpoint.release("/first")
    _, *sent = await push.seen(3)
    assert sorted((each.method, each.body) for each in sent) == [("POST", "1"), ("POST", "2")]
    assert {each.headers["webhook-request-origin"] for each in sent} == {ORIGIN}
    found = push.stored(one)
    assert (found.state, found.permission) == (CONFIRMED, WebhookPermission(True, origin=ORIGIN))
    assert found.confirmed_at_ms >= found.created_at_ms


async def test_a_refusal_is_stored_and_the_endpoint_is_asked_again_on_request(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/refused", Step(), YES, Step())
    one = await push.subscribe(topic, "/refused", webhook=ASKED)
    found = await replied(push, one)
    reason = "the reply has no header WebHook-Allowed-Origin"
    assert (found.state, found.permission) == (PENDING, WebhookPermission(False, reason=reason))
    await push.publish(topic, "kept")
    await push.stop()
    push.start()  # a new home does not ask an endpoint that has refused
    await push.change(one, attributes={"changed": "yes"})
    assert methods(push) == ["OPTIONS"]
    await push.change(one, permission=None)
    assert [each.body for each in await push.seen(3)] == ["", "", "kept"]
    assert methods(push) == ["OPTIONS", "OPTIONS", "POST"]


@pytest.mark.parametrize(
    ("steps", "permission"),
    [
        (
            (Step(status=503), Step(raw="", then="reset"), YES),
            WebhookPermission(True, origin=ORIGIN),
        ),
        (
            (Step(status=429), Step(status=500), Step(status=502), YES),
            WebhookPermission(False, reason="the endpoint replied to OPTIONS with status 502"),
        ),
        (
            (Step(status=405), YES),
            WebhookPermission(False, reason="the endpoint replied to OPTIONS with status 405"),
        ),
    ],
    ids=["third attempt", "no fourth attempt", "a refusal"],
)
async def test_an_endpoint_that_cannot_reply_is_asked_three_times(
    push: PushStage, endpoint: Endpoint, steps: tuple[Step, ...], permission: WebhookPermission
) -> None:
    topic, path = await push.sns_topic(), f"/{len(steps)}-{permission.is_given}"
    endpoint.plan(path, *steps)
    one = await push.subscribe(topic, path, webhook=ASKED)
    assert (await replied(push, one)).permission == permission
    assert methods(push) == ["OPTIONS"] * (1 if steps[0].status == 405 else 3)


@pytest.mark.parametrize(
    ("given", "allowed", "rate"),
    [
        (None, "120", Rate(2.0, 2.0)),
        (None, "1", Rate(1 / 60, 1.0)),
        (5.0, "120", Rate(2.0, 2.0)),
        (1.0, "120", Rate(1.0, 1.0)),
        (1.0, "*", Rate(1.0, 1.0)),
        (None, "*", None),
    ],
)
async def test_the_lower_one_of_two_rates_applies(
    push: PushStage, endpoint: Endpoint, given: float | None, allowed: str, rate: Rate | None
) -> None:
    topic, path = await push.sns_topic(), f"/rate-{given}-{allowed[0]}"
    endpoint.plan(path, Step(headers={**YES.headers, "WebHook-Allowed-Rate": allowed}))
    one = await push.subscribe(topic, path, webhook={**ASKED, "rate_per_s": given})
    await replied(push, one)
    await until(lambda: one.id in push.pushers._running, "there is no pusher")
    assert push.pushers._running[one.id].plan.rate == rate


async def test_the_next_home_asks_if_there_is_no_reply(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/moved", Step(hold=True), YES)
    one = await push.subscribe(topic, "/moved", webhook=ASKED)
    await push.seen(1)
    push.pushers.led(topic, 0, is_led=False)
    push.pushers.led(topic, 0, is_led=True)
    assert (await replied(push, one)).state is CONFIRMED
    assert methods(push) == ["OPTIONS", "OPTIONS"]


async def test_another_home_keeps_the_origin_that_has_the_permission(push: PushStage) -> None:
    topic = await push.sns_topic()
    given: dict[str, Any] = {"permission": WebhookPermission(True, origin="other.example")}
    one = await push.subscribe(topic, "/origin", webhook=ASKED)
    await push.change(one, state=CONFIRMED, **given)
    await push.publish(topic, "1")
    await until(lambda: "POST" in methods(push), "nothing was sent")
    assert push.ledger()[-1].headers["webhook-request-origin"] == "other.example"


async def test_a_reply_to_old_settings_is_not_used(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    no = Step(status=401)
    endpoint.plan("/changed", msgspec.structs.replace(YES, hold=True), no)
    one = await push.subscribe(topic, "/changed", webhook=ASKED)
    await push.seen(1)
    changed = one.webhook.replace('"timeout_ms":15000', '"timeout_ms":15001')
    assert changed != one.webhook
    await push.change(one, webhook=changed)
    await push.seen(2)
    endpoint.release("/changed")
    found = await replied(push, one)
    assert found.permission is not None
    assert "401" in found.permission.reason
    # A reply that is being written when the settings change is not used either.
    decided = push.pushers._handshakes._decided(one, WebhookPermission(True))
    unasked = msgspec.structs.replace(one, webhook=changed)
    assert decided(unasked) is unasked
    assert decided(one).state is CONFIRMED


async def test_a_paused_webhook_does_not_ask(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/paused", Step(hold=True), YES)
    one = await push.subscribe(topic, "/paused", webhook=ASKED)
    await push.seen(1)
    await push.change(one, paused="for a test")
    await until(lambda: not push.pushers._handshakes._tasks, "it is still asked")
    assert push.stored(one).permission is None
    assert methods(push) == ["OPTIONS"]
    await push.change(one, paused=None)
    assert (await replied(push, one)).state is CONFIRMED
    assert methods(push) == ["OPTIONS", "OPTIONS"]


async def test_a_webhook_that_must_ask_later_keeps_its_position(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/later", Step(), Step(status=403), YES, Step())
    one = await push.subscribe(topic, "/later", webhook={})
    await push.publish(topic, "1")
    await push.seen(1)
    await push.finished(topic, one)
    verified = one.webhook.replace('"verify":"none"', '"verify":"cloudevents"')
    assert verified != one.webhook
    await push.change(one, webhook=verified, state=PENDING)
    assert (await replied(push, one)).state is PENDING
    await push.publish(topic, "2")
    await push.change(one, permission=None)
    await push.seen(4)
    await push.finished(topic, one)
    assert [each.body for each in push.ledger()] == ["1", "", "", "2"]


async def test_a_webhook_that_is_deleted_is_not_asked(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/deleted", Step(hold=True))
    one = await push.subscribe(topic, "/deleted", webhook=ASKED)
    await push.seen(1)
    await push.subscriptions.delete(one.id)
    await until(lambda: not push.pushers._handshakes._tasks, "it is still asked")
    assert not push.pushers._handshakes._asking
    assert not push.pushers.lanes
