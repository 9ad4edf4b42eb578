"""Actions on mobile apps, devices and phone numbers through ``Frontend.handle``, with books over a
real store and a gateway that keeps what it gets."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.unit.frontend.aws.test_sns import ABSENT, ACCOUNT, TOPIC, Client, Fields, entries
from tests.unit.metadata.conftest import MASTER, store  # noqa: F401
from tests.unit.push.test_couriers import Kept

from penstock.flow.verdicts import Failure
from penstock.metadata.address_books import StoredAddressBooks
from penstock.metadata.sqlite import SqliteStore
from penstock.node.keys.keyring import MasterKeyRing
from penstock.push.couriers import Couriers
from penstock.wire.aws.sns.book_shapes import OPERATIONS
from penstock.wire.webhooks.courier_urls import PROTOCOLS

BASE = f"arn:aws:sns:us-east-1:{ACCOUNT}"
SHOP = f"{BASE}:app/GCM/shop"
NO_APP = f"{BASE}:app/GCM/absent"
NO_DEVICE = f"{BASE}:endpoint/GCM/shop/12345678-1234-4234-8234-123456789abc"
PHONE = "+15550100999"
SECRET = "hunter2"


class Books(Client):
    def __init__(self, books: StoredAddressBooks, *protocols: str) -> None:
        super().__init__()
        self.kept = Kept(*(protocols or PROTOCOLS))
        couriers = Couriers(books, own_account=ACCOUNT, gateway=self.kept)
        self.rig.frontend.books, self.rig.frontend.couriers = books, couriers

    async def shop(self) -> str:
        given = entries("Attributes", {"PlatformCredential": SECRET})
        root = await self.call("CreatePlatformApplication", Name="shop", Platform="GCM", **given)
        return root.findtext("CreatePlatformApplicationResult/PlatformApplicationArn", "")

    async def device(self, token: str = "t1", **fields: str) -> str:
        fields = {"PlatformApplicationArn": SHOP, "Token": token, **fields}
        root = await self.call("CreatePlatformEndpoint", **fields)
        return root.findtext("CreatePlatformEndpointResult/EndpointArn", "")

    async def set_device(self, arn: str, **attributes: str) -> None:
        await self.call(
            "SetEndpointAttributes", EndpointArn=arn, **entries("Attributes", attributes)
        )

    async def pages(self, action: str, member: str, **fields: str) -> list[str]:
        """Return the members of all pages of a list."""
        found: list[str] = []
        token: str | None = ""
        while token is not None:
            given = {**fields, **({"NextToken": token} if token else {})}
            root = await self.call(action, **given)
            found += [one.text or "" for one in root.iter(member)]
            token = root.findtext(f"{action}Result/NextToken")
        return found


@pytest.fixture
async def books(store: SqliteStore) -> AsyncIterator[StoredAddressBooks]:  # noqa: F811
    found = StoredAddressBooks(store, MasterKeyRing(MASTER), own_account=ACCOUNT)
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
async def client(books: StoredAddressBooks) -> Books:
    return Books(books)


@pytest.mark.parametrize("action", sorted(OPERATIONS))
async def test_without_a_gateway_no_operation_is_served(action: str) -> None:
    text = f"{action} is not served here: phones and mobile push need a gateway (push.gateways)."
    assert await Client().refused(action) == (400, "InvalidAction", text)


async def test_each_family_needs_the_gateway_of_its_protocol(books: StoredAddressBooks) -> None:
    phones, apps = Books(books, "sms"), Books(books, "application")
    for action in OPERATIONS:
        is_app = "Platform" in action or "Endpoint" in action
        served, other = (apps, phones) if is_app else (phones, apps)
        assert (await other.refused(action))[1] == "InvalidAction", action
        assert (await served.refused(action))[1] != "InvalidAction", action


async def test_an_application_is_created_once_and_never_shows_its_secrets(client: Books) -> None:
    assert await client.shop() == SHOP
    assert await client.shop() == SHOP, "again is fine"
    shown = await client.attributes("GetPlatformApplicationAttributes", PlatformApplicationArn=SHOP)
    assert shown == {"Enabled": "true"}
    changed = {"Enabled": "false", "PlatformCredential": "new", "EventEndpointCreated": TOPIC}
    await client.call(
        "SetPlatformApplicationAttributes",
        PlatformApplicationArn=SHOP,
        **entries("Attributes", changed),
    )
    shown = await client.attributes("GetPlatformApplicationAttributes", PlatformApplicationArn=SHOP)
    assert shown == {"Enabled": "false", "EventEndpointCreated": TOPIC}
    root = await client.call("ListPlatformApplications")
    text = ElementTree.tostring(root).decode()
    assert SHOP in text
    assert SECRET not in text
    books = client.rig.frontend.books
    assert books is not None
    stored = books.application((ACCOUNT, "us-east-1", "GCM", "shop"))
    assert stored is not None
    assert books.secrets(stored) == {"PlatformCredential": "new"}


async def test_an_application_with_other_attributes_or_secrets_is_an_error(client: Books) -> None:
    await client.shop()
    for given in ({"PlatformCredential": "x"}, {"PlatformCredential": SECRET, "Enabled": "false"}):
        status, code, text = await client.refused(
            "CreatePlatformApplication", Name="shop", Platform="GCM", **entries("Attributes", given)
        )
        assert (status, code) == (400, "InvalidParameter")
        assert text == (
            "Invalid parameter: Name Reason: An application with the same name but different "
            "properties already exists"
        )


async def test_a_device_is_created_once_and_keeps_its_arn(client: Books) -> None:
    await client.shop()
    arn = await client.device()
    assert re.fullmatch(rf"{BASE}:endpoint/GCM/shop/[0-9a-f-]{{36}}", arn)
    assert await client.device() == arn
    shown = await client.attributes("GetEndpointAttributes", EndpointArn=arn)
    assert shown == {"Enabled": "true", "Token": "t1"}
    text = f"Endpoint {arn} already exists with the same Token, but different attributes."
    for other in ({"CustomUserData": "x"}, entries("Attributes", {"Enabled": "false"})):
        refused = await client.refused(
            "CreatePlatformEndpoint", PlatformApplicationArn=SHOP, Token="t1", **other
        )
        assert refused == (400, "InvalidParameter", f"Invalid parameter: Token Reason: {text}")
    await client.set_device(arn, Token="t2", CustomUserData="mine")
    shown = await client.attributes("GetEndpointAttributes", EndpointArn=arn)
    assert shown == {"Enabled": "true", "Token": "t2", "CustomUserData": "mine"}
    assert await client.device("t2", CustomUserData="mine") == arn
    second = await client.device("t1")
    assert second != arn
    refused = await client.refused(
        "SetEndpointAttributes", EndpointArn=arn, **entries("Attributes", {"Token": "t1"})
    )
    assert refused[1] == "InvalidParameter"
    await client.call("DeleteEndpoint", EndpointArn=second)
    await client.call("DeleteEndpoint", EndpointArn=second)
    assert (await client.refused("GetEndpointAttributes", EndpointArn=second))[0] == 404


async def test_user_data_in_attributes_wins(client: Books) -> None:
    await client.shop()
    given = entries("Attributes", {"CustomUserData": "attribute", "Enabled": "False"})
    arn = await client.device(CustomUserData="parameter", **given)
    shown = await client.attributes("GetEndpointAttributes", EndpointArn=arn)
    assert shown == {"Enabled": "false", "Token": "t1", "CustomUserData": "attribute"}


async def test_lists_have_pages(client: Books) -> None:
    await client.shop()
    made = [await client.device(f"t{number}") for number in range(205)]
    found = await client.pages(
        "ListEndpointsByPlatformApplication", "EndpointArn", PlatformApplicationArn=SHOP
    )
    assert sorted(found) == sorted(made)
    names = [f"{name:03d}" for name in range(150)]
    for name in names:
        given = entries("Attributes", {"PlatformPrincipal": "p", "PlatformCredential": "c"})
        await client.call("CreatePlatformApplication", Name=name, Platform="ADM", **given)
    found = await client.pages("ListPlatformApplications", "PlatformApplicationArn")
    assert found == [f"{BASE}:app/ADM/{name}" for name in names] + [SHOP]
    await client.call("DeletePlatformApplication", PlatformApplicationArn=SHOP)
    refused = await client.refused("GetEndpointAttributes", EndpointArn=made[0])
    assert refused == (404, "NotFound", "Endpoint does not exist")


async def test_books_of_another_account_do_not_exist(
    client: Books, books: StoredAddressBooks
) -> None:
    await client.shop()
    arn = await client.device()
    other = ACCOUNT.replace("0", "1")
    headers = {
        "authorization": (
            f"AWS4-HMAC-SHA256 Credential={other}/20260101/us-east-1/sns/aws4_request,"
            " SignedHeaders=host, Signature=x"
        )
    }
    for action, name, of in (
        ("GetPlatformApplicationAttributes", "PlatformApplicationArn", SHOP),
        ("ListEndpointsByPlatformApplication", "PlatformApplicationArn", SHOP),
        ("GetEndpointAttributes", "EndpointArn", arn),
    ):
        reply = await client.rig.ask(
            body=f"Action={action}&Version=2010-03-31&{name}={of}".encode(), headers=headers
        )
        assert reply.status == 404, reply.body
    for action, name, of in (
        ("DeletePlatformApplication", "PlatformApplicationArn", SHOP),
        ("DeleteEndpoint", "EndpointArn", arn),
    ):
        reply = await client.rig.ask(
            body=f"Action={action}&Version=2010-03-31&{name}={of}".encode(), headers=headers
        )
        assert reply.status == 200, "an endpoint that does not exist is deleted"
    assert len(books) == 2


INVALID = "InvalidParameter"
BAD_APP: Fields = {"PlatformApplicationArn": NO_APP, "Token": "t"}
NO_APP_FOUND = (404, "NotFound", "PlatformApplication does not exist")
NO_DEVICE_FOUND = (404, "NotFound", "Endpoint does not exist")
NO_NUMBER_FOUND = (404, "ResourceNotFound", "Resource does not exist")
NO_TARGET = "TargetArn Reason: No endpoint found for the target arn specified"
ENABLED = entries("Attributes", {"Enabled": "true"})


def invalid(text: str) -> tuple[int, str, str]:
    return 400, INVALID, f"Invalid parameter: {text}"


REFUSED: list[tuple[str, Fields, tuple[int, str, str]]] = [
    ("GetPlatformApplicationAttributes", BAD_APP, NO_APP_FOUND),
    ("SetPlatformApplicationAttributes", BAD_APP | ENABLED, NO_APP_FOUND),
    ("CreatePlatformEndpoint", BAD_APP, NO_APP_FOUND),
    ("ListEndpointsByPlatformApplication", BAD_APP, NO_APP_FOUND),
    (
        "GetPlatformApplicationAttributes",
        {"PlatformApplicationArn": SHOP.replace("us-east-1", "eu-west-1")},
        NO_APP_FOUND,
    ),
    ("GetEndpointAttributes", {"EndpointArn": NO_DEVICE}, NO_DEVICE_FOUND),
    ("SetEndpointAttributes", {"EndpointArn": NO_DEVICE} | ENABLED, NO_DEVICE_FOUND),
    (
        "CreatePlatformEndpoint",
        {"PlatformApplicationArn": SHOP, "Token": ""},
        invalid("Token Reason: cannot be empty"),
    ),
    ("ListPlatformApplications", {"NextToken": "%"}, invalid("NextToken")),
    ("Publish", {"TargetArn": NO_DEVICE, "Message": "m"}, invalid(NO_TARGET)),
    ("Publish", {"TargetArn": NO_DEVICE + "x", "Message": "m"}, invalid(NO_TARGET)),
    (
        "Publish",
        {"PhoneNumber": "555-x", "Message": "m"},
        invalid("PhoneNumber Reason: 555-x is not valid to publish to"),
    ),
    ("Publish", {"PhoneNumber": PHONE, "Message": ""}, invalid("Empty message")),
    ("Publish", {"TargetArn": ABSENT, "Message": "m"}, (404, "NotFound", "Topic does not exist")),
    (
        "SetSMSAttributes",
        entries("attributes", {"DefaultSMSType": "x"}),
        (400, INVALID, "DefaultSMSType is invalid"),
    ),
    ("DeleteSMSSandboxPhoneNumber", {"PhoneNumber": PHONE}, NO_NUMBER_FOUND),
    (
        "VerifySMSSandboxPhoneNumber",
        {"PhoneNumber": PHONE, "OneTimePassword": "12345"},
        NO_NUMBER_FOUND,
    ),
    (
        "ListSMSSandboxPhoneNumbers",
        {"MaxResults": "0"},
        invalid("MaxResults Reason: must be 1 to 100"),
    ),
]


@pytest.mark.parametrize(("action", "fields", "expected"), REFUSED)
async def test_bad_requests_get_the_errors_of_sns(
    client: Books, action: str, fields: Fields, expected: tuple[int, str, str]
) -> None:
    await client.shop()
    assert await client.refused(action, **fields) == expected
    assert client.kept.events == []


# ── Messages to single endpoints ─────────────────────────────────────────────────────────────


async def test_a_message_to_a_device(client: Books) -> None:
    await client.shop()
    arn = await client.device()
    document = json.dumps({"default": "d", "GCM": "for phones", "APNS": "no"})
    fields = {"TargetArn": arn, "Message": document, "MessageStructure": "json", "Subject": "s"}
    root = await client.call("Publish", **fields)
    [event] = client.kept.events
    found = json.loads(event.document)
    assert found["id"] == root.findtext("PublishResult/MessageId")
    assert found["data"] == {
        "account": ACCOUNT,
        "protocol": "application",
        "endpoint": arn,
        "platform": "GCM",
        "token": "t1",
        "message": "for phones",
        "subject": "s",
    }
    await client.set_device(arn, Enabled="false")
    refused = await client.refused("Publish", TargetArn=arn, Message="m")
    assert refused == (400, "EndpointDisabled", "Endpoint is disabled")
    await client.set_device(arn, Enabled="true")
    await client.call(
        "SetPlatformApplicationAttributes",
        PlatformApplicationArn=SHOP,
        **entries("Attributes", {"Enabled": "false"}),
    )
    refused = await client.refused("Publish", TargetArn=arn, Message="m")
    assert refused == (400, "PlatformApplicationDisabled", "PlatformApplication is disabled")


async def test_a_message_to_a_phone_has_the_settings_of_the_tenant(client: Books) -> None:
    await client.call("SetSMSAttributes", **entries("attributes", {"DefaultSenderID": "me"}))
    await client.call("Publish", PhoneNumber=PHONE, Message="hello")
    data = client.kept.data()
    assert (data["endpoint"], data["message"]) == (PHONE, "hello")
    assert data["attributes"] == {"AWS.SNS.SMS.SenderID": {"Type": "String", "Value": "me"}}
    assert client.rig.meter.tallies == {"sent": 1, "sent_bytes": 5}


@pytest.mark.parametrize(
    ("result", "status", "code", "text"),
    [
        (204, 200, "", ""),
        (503, 503, "ServiceUnavailable", "the gateway replied 503"),
        (429, 503, "ServiceUnavailable", "the gateway replied 429"),
        (Failure.TIMEOUT, 503, "ServiceUnavailable", "no reply in time"),
        (400, 400, INVALID, "the gateway replied 400"),
        (404, 400, INVALID, "the gateway replied 404"),
    ],
)
async def test_the_reply_tells_whether_the_gateway_has_the_message(
    client: Books, result: int | Failure, status: int, code: str, text: str
) -> None:
    client.kept.result = result
    found = await client.refused("Publish", PhoneNumber=PHONE, Message="hello")
    assert found[:2] == (status, code)
    assert text in found[2]
    assert ("sent" in client.rig.meter.tallies) == (status == 200)


# ── Phone numbers ────────────────────────────────────────────────────────────────────────────


async def sms_attributes(client: Books, **fields: str) -> dict[str, str]:
    root = await client.call("GetSMSAttributes", **fields)
    return {one.findtext("key", ""): one.findtext("value", "") for one in root.iter("entry")}


async def test_settings_for_text_messages(client: Books) -> None:
    assert await sms_attributes(client) == {"MonthlySpendLimit": "1"}
    given = {"DefaultSMSType": "Transactional", "MonthlySpendLimit": "7", "DefaultSenderID": "a"}
    await client.call("SetSMSAttributes", **entries("attributes", given))
    await client.call("SetSMSAttributes", **entries("attributes", {"DefaultSenderID": ""}))
    assert await sms_attributes(client) == {
        "DefaultSMSType": "Transactional",
        "MonthlySpendLimit": "7",
    }
    some = await sms_attributes(client, **{"attributes.member.1": "DefaultSMSType"})
    assert some == {"DefaultSMSType": "Transactional"}


async def test_nobody_is_opted_out_or_in_the_sandbox(client: Books) -> None:
    root = await client.call("CheckIfPhoneNumberIsOptedOut", phoneNumber=PHONE)
    assert root.findtext("CheckIfPhoneNumberIsOptedOutResult/isOptedOut") == "false"
    root = await client.call("ListPhoneNumbersOptedOut")
    assert root.find("ListPhoneNumbersOptedOutResult/phoneNumbers") is not None
    await client.call("OptInPhoneNumber", phoneNumber=PHONE)
    root = await client.call("GetSMSSandboxAccountStatus")
    assert root.findtext("GetSMSSandboxAccountStatusResult/IsInSandbox") == "false"
    root = await client.call("ListOriginationNumbers")
    assert list(root.iter("member")) == []


async def numbers(client: Books) -> dict[str, str]:
    root = await client.call("ListSMSSandboxPhoneNumbers")
    members = root.iter("member")
    return {one.findtext("PhoneNumber", ""): one.findtext("Status", "") for one in members}


async def verify(client: Books, password: str) -> str:
    fields = {"PhoneNumber": PHONE, "OneTimePassword": password}
    return (await client.refused("VerifySMSSandboxPhoneNumber", **fields))[1]


def password_of(client: Books) -> str:
    found = re.search("[0-9]{6}", client.kept.data()["message"])
    assert found is not None
    return found[0]


async def test_a_number_is_verified_by_the_password_that_it_got(client: Books) -> None:
    await client.call("CreateSMSSandboxPhoneNumber", PhoneNumber=PHONE, LanguageCode="en-US")
    assert await numbers(client) == {PHONE: "Pending"}
    assert await verify(client, "00000000") == "VerificationException"
    assert await verify(client, password_of(client)) == ""
    assert await numbers(client) == {PHONE: "Verified"}
    await client.call("CreateSMSSandboxPhoneNumber", PhoneNumber=PHONE)
    assert len(client.kept.events) == 1, "a verified number gets no other password"
    assert await verify(client, "00000") == "VerificationException"
    await client.call("DeleteSMSSandboxPhoneNumber", PhoneNumber=PHONE)
    assert await numbers(client) == {}


async def test_a_password_cannot_be_guessed_or_used_late(client: Books) -> None:
    await client.call("CreateSMSSandboxPhoneNumber", PhoneNumber=PHONE)
    password = password_of(client)
    for _ in range(5):
        assert await verify(client, "00000000") == "VerificationException"
    assert await verify(client, password) == "VerificationException", "too many wrong ones"
    again: dict[str, Any] = {"PhoneNumber": PHONE}
    assert (await client.refused("CreateSMSSandboxPhoneNumber", **again))[:2] == (429, "Throttled")
    client.rig.clock.now_ms += 60_000
    await client.call("CreateSMSSandboxPhoneNumber", **again)
    client.rig.clock.now_ms += 15 * 60_000 + 1
    assert await verify(client, password_of(client)) == "VerificationException"


async def test_the_sandbox_has_ten_numbers(client: Books) -> None:
    for number in range(10):
        await client.call("CreateSMSSandboxPhoneNumber", PhoneNumber=f"+155501009{number:02d}")
    refused = await client.refused("CreateSMSSandboxPhoneNumber", PhoneNumber=PHONE)
    assert refused[:2] == (400, "UserError")
    root = await client.call("ListSMSSandboxPhoneNumbers", MaxResults="4")
    assert len(list(root.iter("member"))) == 4
    token = root.findtext("ListSMSSandboxPhoneNumbersResult/NextToken", "")
    root = await client.call("ListSMSSandboxPhoneNumbers", NextToken=token)
    assert len(list(root.iter("member"))) == 6


async def test_a_reset_deletes_the_books(client: Books, books: StoredAddressBooks) -> None:
    await client.shop()
    await client.device()
    reply = await client.rig.ask(path="/_penstock/reset", headers={})
    assert reply.status == 200, reply.body
    assert len(books) == 0
