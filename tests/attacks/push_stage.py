"""Subscriptions of a real endpoint, for the attacks on push."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.credentials import Credentials
from tests.attacks.kit import REGION, send, sns_form
from tests.harness.endpoint import Endpoint, Seen
from tests.harness.patience import eventually
from tests.harness.server import Server

OWN = "000000000000"
CONFIRMATION = "SubscriptionConfirmation"
MESSAGE = re.compile("<Message>([^<]*)</Message>")


def sns_as(server: Server, credentials: Credentials, region: str = REGION) -> Any:
    return boto3.client(
        "sns",
        endpoint_url=server.url,
        region_name=region,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(retries={"max_attempts": 0, "mode": "standard"}),
    )


def link(server: Server, action: str, body: bytes | None = None, **fields: str) -> tuple[int, str]:
    """Follow a link without a signature. With a body, as a form."""
    path = f"/?{sns_form(action, fields).decode()}"
    headers = {} if body is None else {"content-type": "application/x-www-form-urlencoded"}
    method = "GET" if body is None else "POST"
    status, reply, _ = send(urlsplit(server.url).netloc, method, path, body, headers)
    return status, reply.decode()


def refusal(reply: tuple[int, str]) -> tuple[int, str]:
    found = MESSAGE.search(reply[1])
    return reply[0], "" if found is None else found[1]


def seen(endpoint: Endpoint, path: str) -> list[Seen]:
    return [each for each in endpoint.ledger() if each.target == path]


def first_seen(endpoint: Endpoint, path: str) -> Seen:
    eventually(lambda: seen(endpoint, path), seconds=60, what=f"a request to {path}")
    return seen(endpoint, path)[0]


class Subscribed:
    """A topic, by default a new one, with a subscription of an endpoint, which is not confirmed."""

    def __init__(self, sns: Any, endpoint: Endpoint, name: str, *, topic: str = "") -> None:
        self._sns = sns
        self.topic = topic or str(sns.create_topic(Name=name)["TopicArn"])
        self.arn = str(
            sns.subscribe(
                TopicArn=self.topic,
                Protocol="http",
                Endpoint=endpoint.url(f"/{name}"),
                ReturnSubscriptionArn=True,
            )["SubscriptionArn"]
        )
        request = first_seen(endpoint, f"/{name}")
        assert request.headers["x-amz-sns-message-type"] == CONFIRMATION
        self.token = str(json.loads(request.body)["Token"])

    def is_pending(self) -> bool:
        shown = self._sns.get_subscription_attributes(SubscriptionArn=self.arn)["Attributes"]
        return str(shown["PendingConfirmation"]) == "true"
