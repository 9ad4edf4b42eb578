"""Every text of the checks of address books, and forms of endpoints."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.address_book import PLATFORMS, PlatformEndpoint, SmsBook
from penstock.model.message import Attribute
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import arns
from penstock.wire.aws.sns.book_rules import (
    check_application,
    check_number,
    check_password,
    check_sandbox_number,
    check_sms_attributes,
    is_mail_address,
    read_application,
    show_endpoint,
    show_sms,
    text_for,
    with_attributes,
    with_sms_defaults,
)

ACCOUNT = "000000000000"
BASE = f"arn:aws:sns:us-east-1:{ACCOUNT}"
ID = "12345678-1234-4234-8234-123456789abc"
ENDPOINT = PlatformEndpoint(ID, ACCOUNT, "us-east-1", "GCM", "shop", "token", 0)
SECRETS = {"PlatformPrincipal": "p", "PlatformCredential": "c"}
BAD = "Invalid parameter: Attributes Reason: "
BAD_VALUE = BAD + "Invalid value for attribute: "


def null(path: str) -> str:
    return (
        f"1 validation error detected: Value null at '{path}' failed to satisfy constraint: "
        "Member must not be null"
    )


def refused(check: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(Fault) as caught:
        check()
    return caught.value.code, caught.value.message


def reading(platform: str = "APNS", *, is_new: bool = True, **attributes: str) -> Callable[[], Any]:
    return lambda: read_application(attributes or None, platform, is_new=is_new)


def changing(**attributes: str) -> Callable[[], Any]:
    return lambda: with_attributes(ENDPOINT, attributes)


def parsing(arn: str | None) -> Callable[[], Any]:
    return lambda: arns.parse_application(arn, caller=ACCOUNT)


def parsing_endpoint(arn: str | None) -> Callable[[], Any]:
    return lambda: arns.parse_endpoint(arn, caller=ACCOUNT)


SLASHES = "Reason: Wrong number of slashes in relative portion of the ARN."
CHARS = "must contain only characters 'a'-'z', 'A'-'Z', '0'-'9', '_', '-', and '.'"
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: check_application(None, "GCM"), null("name")),
    (lambda: check_application("", "GCM"), "Invalid parameter:  Reason: cannot be empty"),
    (
        lambda: check_application("n" * 257, "GCM"),
        f"Invalid parameter: {'n' * 257} Reason: must be at most 256 characters long",
    ),
    (lambda: check_application("a/b", "GCM"), f"Invalid parameter: a/b Reason: {CHARS}"),
    (lambda: check_application("a\n", "GCM"), f"Invalid parameter: a\n Reason: {CHARS}"),
    (lambda: check_application("a", None), null("platform")),
    (
        lambda: check_application("a", "gcm"),
        "Invalid parameter: Platform Reason: gcm is not supported",
    ),
    (reading(), null("attributes")),
    (
        reading(PlatformCredential="c"),
        BAD + "PlatformCredential attribute provided without PlatformPrincipal",
    ),
    (
        reading(PlatformPrincipal="p"),
        BAD + "PlatformPrincipal attribute provided without PlatformCredential",
    ),
    (
        reading("GCM", PlatformPrincipal="p"),
        BAD + "PlatformPrincipal attribute provided without PlatformCredential",
    ),
    (
        reading(is_new=False, PlatformPrincipal="p"),
        BAD + "PlatformPrincipal attribute provided without PlatformCredential",
    ),
    (reading(Nope="x"), BAD + "Invalid attribute name: Nope"),
    (reading(Enabled="yes"), BAD_VALUE + "Enabled: must be true or false"),
    (
        reading(SuccessFeedbackSampleRate="101"),
        BAD_VALUE + "SuccessFeedbackSampleRate: 101 value provided is not an integer between 0-100",
    ),
    (
        reading(EventEndpointCreated="x" * 2_049),
        BAD_VALUE + "EventEndpointCreated: must be at most 2048 characters long",
    ),
    (
        reading("GCM", PlatformCredential="x" * 16_385),
        BAD_VALUE + "PlatformCredential: must be at most 16384 characters long",
    ),
    (changing(Nope="x"), BAD + "Invalid attribute name: Nope"),
    (changing(Enabled=""), BAD_VALUE + "Enabled: must be true or false"),
    (changing(Token=""), BAD_VALUE + "Token: cannot be empty"),
    (changing(Token="t" * 4_097), BAD_VALUE + "Token: must be at most 4096 characters long"),
    (
        changing(CustomUserData="ü" * 1_025),
        BAD_VALUE + "CustomUserData: must be at most 2048 bytes long in UTF-8 encoding",
    ),
    (
        parsing(""),
        ("Invalid parameter: PlatformApplicationArn Reason: An ARN must have at least 6 elements,"
        " not 1"),
    ),
    (parsing(f"{BASE}:topic"), f"Invalid parameter: PlatformApplicationArn {SLASHES}"),
    (parsing(f"{BASE}:app/GCM/a/b"), f"Invalid parameter: PlatformApplicationArn {SLASHES}"),
    (parsing("arn:aws:sqs:r:a:app/GCM/a"), "Invalid parameter: PlatformApplicationArn"),
    (
        parsing_endpoint(None),
        "Invalid parameter: EndpointArn Reason: An ARN must have at least 6 elements, not 1",
    ),
    (parsing_endpoint(f"{BASE}:app/GCM/a"), f"Invalid parameter: EndpointArn {SLASHES}"),
    (
        parsing_endpoint(f"{ENDPOINT.arn}invalid"),
        ("Invalid parameter: EndpointArn Reason: ARN specifies an invalid endpointId: UUID must be"
        " encoded in exactly 36 characters."),
    ),
    (lambda: check_sms_attributes(None), null("attributes")),
    (lambda: check_sms_attributes({"Nope": "1"}), "Nope is not a valid attribute"),
    (lambda: check_sms_attributes({"DefaultSMSType": "Loud"}), "DefaultSMSType is invalid"),
    (lambda: check_sms_attributes({"DefaultSenderID": "x" * 2_049}), "DefaultSenderID is invalid"),
    (lambda: check_number(None), null("phoneNumber")),
    (
        lambda: check_number("12a"),
        "Invalid parameter: PhoneNumber Reason: 12a is not a valid phone number in E.164 format",
    ),
    (lambda: check_sandbox_number(""), null("phoneNumber")),
    (
        lambda: check_sandbox_number("15550100"),
        ("Invalid parameter: PhoneNumber Reason: 15550100 is not a phone number in E.164 format,"
        " such as +15550100999"),
    ),
    (lambda: check_password(None), null("oneTimePassword")),
    (
        lambda: check_password("1234"),
        "Invalid parameter: OneTimePassword Reason: must have 5 to 8 digits",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "text"), REFUSED, ids=[text[:60] for _, text in REFUSED])
def test_bad_values_get_the_texts_of_sns(check: Callable[[], Any], text: str) -> None:
    code = "ValidationError" if text.startswith("1 validation") else "InvalidParameter"
    assert refused(check) == (code, text)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_secrets_are_kept_apart_and_only_gcm_needs_one(platform: str) -> None:
    found = read_application({**SECRETS, "Enabled": "TRUE"}, platform, is_new=True)
    assert found.shown == {"Enabled": "true"}
    assert found.secrets == SECRETS
    assert check_application("A.b_c-1", platform) == ("A.b_c-1", platform)
    if platform == "GCM":
        read_application({"PlatformCredential": "c"}, platform, is_new=True)
    # A credential is renewed without the principal.
    assert read_application({"PlatformCredential": "c"}, platform, is_new=False).secrets


def test_attributes_of_endpoints() -> None:
    assert show_endpoint(ENDPOINT) == {"Enabled": "true", "Token": "token"}
    given = {"Enabled": "False", "Token": "new", "CustomUserData": "data"}
    changed = with_attributes(ENDPOINT, given)
    assert show_endpoint(changed) == {**given, "Enabled": "false"}
    assert changed.id == ENDPOINT.id
    assert with_attributes(changed, {}) == changed


def test_arns_of_applications_and_endpoints() -> None:
    application = arns.parse_application(f"{BASE}:app/GCM/shop", caller="1")
    assert application == arns.ApplicationArn("us-east-1", ACCOUNT, "GCM", "shop")
    found = arns.parse_endpoint(ENDPOINT.arn, caller="1")
    assert found == arns.EndpointArn(application, ID)
    assert arns.is_endpoint(ENDPOINT.arn)
    assert not arns.is_endpoint(f"{BASE}:endpoint")
    assert arns.parse_application("arn:aws:sns:r::app/GCM/a", caller=ACCOUNT).account == ACCOUNT


@pytest.mark.parametrize("text", ["a@b", "first.last+tag@mail.example.com", "o'neil@x-y.z"])
def test_mail_addresses(text: str) -> None:
    assert is_mail_address(text)


@pytest.mark.parametrize(
    "text",
    ["", "a", "@b", "a@", "a@b@c", "a b@c", "a@b c", "a@b.", "a@b\n", "a\n@b", "a,b@c", "<a@b>",
     "a@b\r\nRCPT TO:<x@y>", '"a"@b', "a;b@c", "ü@b", "a@ü", "a\0@b", "a@b." + "c" * 251,
     "a@[127.0.0.1]"],
)  # fmt: skip
def test_other_texts_are_no_mail_addresses(text: str) -> None:
    assert not is_mail_address(text)


@given(st.text())
def test_a_mail_address_has_no_character_that_adds_a_header_or_a_recipient(text: str) -> None:
    if is_mail_address(text):
        assert text.isascii()
        assert text.isprintable()
        assert not set(text) & set(' <>,;:"()[]\\')


def test_text_messages_get_the_settings_of_the_tenant() -> None:
    assert show_sms({}, None) == {"MonthlySpendLimit": "1"}
    stored = dict(check_sms_attributes({"DefaultSMSType": "Promotional", "DefaultSenderID": "me"}))
    assert show_sms(stored, []) == {"MonthlySpendLimit": "1", **stored}
    assert show_sms(stored, ["DefaultSenderID", "Nope"]) == {"DefaultSenderID": "me"}
    book = SmsBook(ACCOUNT, "us-east-1", stored)
    own = {"AWS.SNS.SMS.SenderID": Attribute("String", b"own")}
    assert with_sms_defaults(book, own) == {
        **own,
        "AWS.SNS.SMS.SMSType": Attribute("String", b"Promotional"),
    }
    assert with_sms_defaults(SmsBook(ACCOUNT, "us-east-1"), own) is own


def test_the_text_for_an_endpoint_is_that_of_its_platform() -> None:
    texts = {"default": "d", "sms": "s", "GCM": "g"}
    assert text_for(texts, "sms", "+1555") == "s"
    assert text_for(texts, "lambda", "arn") == "d"
    assert text_for(texts, "application", ENDPOINT.arn) == "g"
    assert text_for({"default": "d", "application": "a"}, "application", ENDPOINT.arn) == "a"
    assert text_for({"default": "d"}, "application", ENDPOINT.arn) == "d"
