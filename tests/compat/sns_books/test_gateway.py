"""A server whose messages to phones go to a gateway, and which has no outbox."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from tests.compat.conftest import CREDENTIALS, REGION
from tests.compat.sns_books.test_sns_books import refused
from tests.harness.endpoint import Endpoint, Step
from tests.harness.server import Server

PHONE = "+15550100999"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.fixture(scope="module")
def phones(tmp_path_factory: pytest.TempPathFactory, gateway: Endpoint) -> Iterator[Any]:
    """An SNS client of a server with this gateway."""
    env = {
        "PENSTOCK_PUSH__GATEWAYS": f"sms={gateway.url('/sms')}",
        "PENSTOCK_PUSH__OUTBOX": "off",
    }
    with Server(tmp_path_factory.mktemp("gateway"), fsync="never", env=env) as running:
        config = Config(retries={"max_attempts": 0, "mode": "standard"}, read_timeout=60)
        client = boto3.client(
            "sns", endpoint_url=running.url, region_name=REGION, config=config, **CREDENTIALS
        )
        yield client
        client.close()
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


def test_a_text_message_is_posted_to_the_gateway(phones: Any, gateway: Endpoint) -> None:
    seen_before = len(gateway.ledger())
    sent = phones.publish(PhoneNumber=PHONE, Message="hello")
    [seen] = gateway.ledger(seen_before)
    event = json.loads(seen.body)
    assert event["id"] == sent["MessageId"]
    assert event["data"]["message"] == "hello"


def test_a_message_that_the_gateway_does_not_accept_is_an_error(
    phones: Any, gateway: Endpoint
) -> None:
    gateway.plan("/sms", Step(status=503))
    status, code, text = refused(phones.publish, PhoneNumber=PHONE, Message="m")
    assert (status, code) == (503, "ServiceUnavailable")
    assert "the gateway replied 503" in text
    gateway.plan("/sms", Step(status=422))
    assert refused(phones.publish, PhoneNumber=PHONE, Message="m")[:2] == (400, "InvalidParameter")
    gateway.plan("/sms")
    phones.publish(PhoneNumber=PHONE, Message="m")


def test_without_a_gateway_for_mobile_apps_there_are_none(phones: Any) -> None:
    assert refused(phones.list_platform_applications) == (
        400,
        "InvalidAction",
        (
            "ListPlatformApplications is not served here: phones and mobile push need a gateway"
            " (push.gateways)."
        ),
    )
    assert phones.get_sms_attributes()["attributes"] == {"MonthlySpendLimit": "1"}
