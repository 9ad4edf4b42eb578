"""Permissions on mobile apps, devices and phone numbers, with signed requests."""

import datetime
import re
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode

import botocore.auth
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.unit.frontend.aws.test_sns import entries
from tests.unit.frontend.aws.test_sns_books import PHONE, books  # noqa: F401
from tests.unit.frontend.memory import MemoryIdentities, Rig
from tests.unit.frontend.signing import (
    HOST,
    OTHER,
    OWN,
    REGION,
    SECRET,
    allow,
    deny,
    locked,
    policy,
)
from tests.unit.metadata.conftest import store  # noqa: F401
from tests.unit.push.test_couriers import Kept

from penstock.metadata.address_books import StoredAddressBooks
from penstock.net.http.exchange import HttpRequest
from penstock.push.couriers import Couriers
from penstock.wire.aws.sns.book_shapes import OPERATIONS
from penstock.wire.webhooks.courier_urls import PROTOCOLS

BASE = f"arn:aws:sns:{REGION}:{OWN}"
SHOP = f"{BASE}:app/GCM/shop"
APP = {"Name": "shop", "Platform": "GCM", **entries("Attributes", {"PlatformCredential": "c"})}


class House:
    def __init__(self, books: StoredAddressBooks) -> None:  # noqa: F811
        self.rig: Rig
        self.identities: MemoryIdentities
        self.rig, self.identities = locked()
        self.kept = Kept(*PROTOCOLS)
        self.rig.frontend.books = books
        self.rig.frontend.couriers = Couriers(books, own_account=OWN, gateway=self.kept)

    async def ask(
        self, action: str, key: str = "AKOWN", secret: str = SECRET, **fields: str
    ) -> tuple[str, str]:
        """Return the code of the error, empty if there is none, and the reply."""
        body = urlencode({"Action": action, "Version": "2010-03-31", **fields}).encode()
        headers = {"Host": HOST, "Content-Type": "application/x-www-form-urlencoded"}
        request = AWSRequest("POST", f"http://{HOST}/", headers=headers, data=body)
        now = datetime.datetime.fromtimestamp(self.rig.clock.now_ms / 1_000, datetime.UTC)
        with patch.object(botocore.auth, "get_current_datetime", lambda: now):
            SigV4Auth(Credentials(key, secret), "sns", REGION).add_auth(request)
        sent = {name.lower(): value for name, value in request.headers.items()}
        reply = await self.rig.frontend.handle(
            HttpRequest("POST", "/", "", sent, body, "10.1.2.3", "request-1", False)
        )
        found = re.search(rb"<Code>(\w+)</Code>", reply.body)
        return "" if found is None else found[1].decode(), reply.body.decode()

    async def alice(self, action: str, *blocks: dict[str, Any], **fields: str) -> str:
        self.identities.put(OWN, "alice", "AKALICE", "hers", *([policy(*blocks)] if blocks else []))
        return (await self.ask(action, "AKALICE", "hers", **fields))[0]


@pytest.fixture
async def house(books: StoredAddressBooks) -> House:  # noqa: F811
    made = House(books)
    assert (await made.ask("CreatePlatformApplication", **APP))[0] == ""
    return made


async def test_every_operation_needs_its_permission(house: House) -> None:
    for action in OPERATIONS:
        assert await house.alice(action) == "AuthorizationError", action
        assert await house.alice(action, allow(f"sns:{action}")) != "AuthorizationError", action
    assert await house.alice("Publish", PhoneNumber=PHONE, Message="m") == "AuthorizationError"
    assert house.kept.events == []


async def test_a_permission_can_be_on_one_application(house: House) -> None:
    get, field = "GetPlatformApplicationAttributes", "PlatformApplicationArn"
    only = allow(f"sns:{get}", SHOP)
    assert await house.alice(get, only, **{field: SHOP}) == ""
    assert await house.alice(get, only, **{field: SHOP + "x"}) == "AuthorizationError"
    # However the ARN is written.
    denied = deny(f"sns:{get}", SHOP)
    for spelling in (SHOP, SHOP.replace(OWN, ""), SHOP.replace("arn:aws:", "arn:aws-cn:")):
        code = await house.alice(get, allow("sns:*"), denied, **{field: spelling})
        assert code == "AuthorizationError", spelling


async def test_messages_to_phones_and_devices(house: House) -> None:
    _, reply = await house.ask("CreatePlatformEndpoint", PlatformApplicationArn=SHOP, Token="t")
    found = re.search("<EndpointArn>(.*)</EndpointArn>", reply)
    assert found is not None
    device = found[1]
    to_devices = allow("sns:Publish", f"{BASE}:endpoint/GCM/*")
    assert await house.alice("Publish", to_devices, TargetArn=device, Message="m") == ""
    assert await house.alice("Publish", to_devices, PhoneNumber=PHONE, Message="m") != ""
    to_all = allow("sns:Publish")
    assert await house.alice("Publish", to_all, PhoneNumber=PHONE, Message="m") == ""
    code, _ = await house.ask("Publish", "AKOTHER", TargetArn=device, Message="m")
    assert code == "InvalidParameter", f"nothing of {OTHER} has this name"
    assert len(house.kept.events) == 2
