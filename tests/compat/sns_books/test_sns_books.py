"""boto3 against the address books of a server in development mode, whose messages to phones and
mobile apps are read from the outbox by a Kafka client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.harness.server import Server

ACCOUNT = "000000000000"
Outbox = Callable[[str], list[dict[str, Any]]]


def refused(call: Callable[..., Any], **given: Any) -> tuple[int, str, str]:
    with pytest.raises(ClientError) as caught:
        call(**given)
    reply: Any = caught.value.response
    status = reply["ResponseMetadata"]["HTTPStatusCode"]
    return status, reply["Error"]["Code"], reply["Error"]["Message"]


# ── Mobile apps and devices ──────────────────────────────────────────────────────────────────


def test_an_application(sns: Any, application: str, name: str) -> None:
    assert application == f"arn:aws:sns:us-east-1:{ACCOUNT}:app/GCM/{name}"
    get = sns.get_platform_application_attributes
    assert get(PlatformApplicationArn=application)["Attributes"] == {"Enabled": "true"}
    sns.set_platform_application_attributes(
        PlatformApplicationArn=application,
        Attributes={"Enabled": "false", "PlatformCredential": "new"},
    )
    assert get(PlatformApplicationArn=application)["Attributes"] == {"Enabled": "false"}
    pages = sns.get_paginator("list_platform_applications").paginate()
    listed = [one for page in pages for one in page["PlatformApplications"]]
    assert {"PlatformApplicationArn": application, "Attributes": {"Enabled": "false"}} in listed
    sns.delete_platform_application(PlatformApplicationArn=application)
    sns.delete_platform_application(PlatformApplicationArn=application)
    assert refused(get, PlatformApplicationArn=application) == (
        404,
        "NotFound",
        "PlatformApplication does not exist",
    )


def test_an_application_of_an_unknown_platform(sns: Any, name: str) -> None:
    given = {"Name": name, "Platform": "FAX", "Attributes": {"PlatformCredential": "c"}}
    assert refused(sns.create_platform_application, **given) == (
        400,
        "InvalidParameter",
        "Invalid parameter: Platform Reason: FAX is not supported",
    )
    given |= {"Platform": "APNS"}
    assert refused(sns.create_platform_application, **given)[2] == (
        "Invalid parameter: Attributes Reason: PlatformCredential attribute provided without "
        "PlatformPrincipal"
    )


def test_a_device(sns: Any, application: str, device: str) -> None:
    create, get = sns.create_platform_endpoint, sns.get_endpoint_attributes
    again = create(PlatformApplicationArn=application, Token="token")
    assert again["EndpointArn"] == device
    shown = get(EndpointArn=device)["Attributes"]
    assert shown == {"Enabled": "true", "Token": "token"}
    sns.set_endpoint_attributes(
        EndpointArn=device, Attributes={"Token": "new", "CustomUserData": "mine"}
    )
    shown = get(EndpointArn=device)["Attributes"]
    assert shown == {"Enabled": "true", "Token": "new", "CustomUserData": "mine"}
    given = {"PlatformApplicationArn": application, "Token": "new"}
    text = f"Endpoint {device} already exists with the same Token, but different attributes."
    assert refused(create, **given) == (
        400,
        "InvalidParameter",
        f"Invalid parameter: Token Reason: {text}",
    )
    sns.delete_endpoint(EndpointArn=device)
    sns.delete_endpoint(EndpointArn=device)
    assert refused(get, EndpointArn=device) == (404, "NotFound", "Endpoint does not exist")


def test_devices_are_listed_in_pages(sns: Any, application: str) -> None:
    made = [
        sns.create_platform_endpoint(PlatformApplicationArn=application, Token=f"{n}")
        for n in range(101)
    ]
    paginator = sns.get_paginator("list_endpoints_by_platform_application")
    pages = list(paginator.paginate(PlatformApplicationArn=application))
    assert [len(page["Endpoints"]) for page in pages] == [100, 1]
    listed = {one["EndpointArn"] for page in pages for one in page["Endpoints"]}
    assert listed == {one["EndpointArn"] for one in made}


# ── Messages ─────────────────────────────────────────────────────────────────────────────────


def test_a_message_to_a_device_is_in_the_outbox(sns: Any, device: str, outbox: Outbox) -> None:
    document = json.dumps({"default": "d", "GCM": "for phones"})
    sent = sns.publish(TargetArn=device, Message=document, MessageStructure="json", Subject="s")
    [event] = outbox(device)
    assert (event["specversion"], event["type"]) == ("1.0", "penstock.application")
    assert event["id"] == sent["MessageId"]
    assert event["data"]["message"] == "for phones"
    assert (event["data"]["platform"], event["data"]["token"]) == ("GCM", "token")
    assert "secret" not in json.dumps(event)
    sns.set_endpoint_attributes(EndpointArn=device, Attributes={"Enabled": "false"})
    assert refused(sns.publish, TargetArn=device, Message="m") == (
        400,
        "EndpointDisabled",
        "Endpoint is disabled",
    )
    assert len(outbox(device)) == 1


def test_a_message_to_a_phone_is_in_the_outbox(sns: Any, outbox: Outbox) -> None:
    sns.set_sms_attributes(attributes={"DefaultSMSType": "Transactional"})
    shown = sns.get_sms_attributes()["attributes"]
    assert shown == {"MonthlySpendLimit": "1", "DefaultSMSType": "Transactional"}
    number = "+15550100001"
    for text in ("one", "two"):
        sns.publish(PhoneNumber=number, Message=text)
    events = outbox(number)
    assert [event["data"]["message"] for event in events] == ["one", "two"]
    kind = {"AWS.SNS.SMS.SMSType": {"Type": "String", "Value": "Transactional"}}
    assert events[0]["data"]["attributes"] == kind
    assert refused(sns.publish, PhoneNumber="x1", Message="m")[2] == (
        "Invalid parameter: PhoneNumber Reason: x1 is not valid to publish to"
    )


def test_an_unknown_target(sns: Any, device: str) -> None:
    wrong = device[:-12] + "0" * 12
    assert refused(sns.publish, TargetArn=wrong, Message="m") == (
        400,
        "InvalidParameter",
        "Invalid parameter: TargetArn Reason: No endpoint found for the target arn specified",
    )


# ── Phone numbers ────────────────────────────────────────────────────────────────────────────


def test_a_number_of_the_sandbox(sns: Any, outbox: Outbox) -> None:
    number = "+15550100002"
    sns.create_sms_sandbox_phone_number(PhoneNumber=number, LanguageCode="en-US")
    listed = sns.list_sms_sandbox_phone_numbers()["PhoneNumbers"]
    assert listed == [{"PhoneNumber": number, "Status": "Pending"}]
    [event] = outbox(number)
    password = event["data"]["message"].removesuffix(".").rpartition(" ")[2]
    wrong = "1" * 8
    with pytest.raises(sns.exceptions.VerificationException):
        sns.verify_sms_sandbox_phone_number(PhoneNumber=number, OneTimePassword=wrong)
    sns.verify_sms_sandbox_phone_number(PhoneNumber=number, OneTimePassword=password)
    listed = sns.list_sms_sandbox_phone_numbers()["PhoneNumbers"]
    assert listed == [{"PhoneNumber": number, "Status": "Verified"}]
    sns.delete_sms_sandbox_phone_number(PhoneNumber=number)
    with pytest.raises(sns.exceptions.ResourceNotFoundException):
        sns.delete_sms_sandbox_phone_number(PhoneNumber=number)


def test_lists_that_the_gateway_keeps_are_empty(sns: Any) -> None:
    number = "+15550100003"
    assert sns.check_if_phone_number_is_opted_out(phoneNumber=number)["isOptedOut"] is False
    assert sns.list_phone_numbers_opted_out()["phoneNumbers"] == []
    sns.opt_in_phone_number(phoneNumber=number)
    assert sns.get_sms_sandbox_account_status()["IsInSandbox"] is False
    assert sns.list_origination_numbers()["PhoneNumbers"] == []


def test_the_books_survive_a_restart(
    sns: Any, server: Server, application: str, device: str
) -> None:
    server.restart()
    shown = sns.get_endpoint_attributes(EndpointArn=device)["Attributes"]
    assert shown["Token"] == "token"
    # The secret is compared, so it was unwrapped again.
    name = application.rpartition("/")[2]
    again = {"Name": name, "Platform": "GCM", "Attributes": {"PlatformCredential": "secret"}}
    assert sns.create_platform_application(**again)["PlatformApplicationArn"] == application
    again["Attributes"] = {"PlatformCredential": "other"}
    assert refused(sns.create_platform_application, **again)[2] == (
        "Invalid parameter: Name Reason: An application with the same name but different "
        "properties already exists"
    )
