"""The checks of address books, with the error texts of SNS: names and attributes of mobile apps and
devices, settings for text messages, and mail addresses."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.model.address_book import NAME_CHARS_MAX, PLATFORMS, PlatformEndpoint, SmsBook
from penstock.model.address_book import is_application_name as _is_name
from penstock.model.message import Attribute
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns.faults import cut, fault, invalid, null_value

TOKEN_CHARS_MAX: Final = 4_096  # the longest in use have less than 1,000
USER_DATA_BYTES_MAX: Final = 2_048
TEXT_CHARS_MAX: Final = 2_048  # of an attribute that is not a credential
CREDENTIAL_CHARS_MAX: Final = 16_384  # a certificate chain and a private key
MAIL_CHARS_MAX: Final = 254  # of an address in a mail server's command

ENABLED: Final = "Enabled"
TOKEN: Final = "Token"  # noqa: S105 - of a device
USER_DATA: Final = "CustomUserData"
PRINCIPAL: Final = "PlatformPrincipal"
CREDENTIAL: Final = "PlatformCredential"
_SAMPLE_RATE: Final = "SuccessFeedbackSampleRate"
_APPLICATION_ATTRIBUTES: Final = frozenset(
    (
        ENABLED,
        PRINCIPAL,
        CREDENTIAL,
        _SAMPLE_RATE,
        "SuccessFeedbackRoleArn",
        "FailureFeedbackRoleArn",
        "EventEndpointCreated",
        "EventEndpointDeleted",
        "EventEndpointUpdated",
        "EventDeliveryFailure",
        "ApplePlatformTeamID",
        "ApplePlatformBundleID",
    )
)
_ENDPOINT_ATTRIBUTES: Final = (ENABLED, TOKEN, USER_DATA)
_WITHOUT_PRINCIPAL: Final = "GCM"  # a credential is enough for its apps

SPEND_LIMIT: Final = "MonthlySpendLimit"
SENDER_ID: Final = "DefaultSenderID"
SMS_TYPE: Final = "DefaultSMSType"
_SMS_ATTRIBUTES: Final = frozenset(
    (
        SPEND_LIMIT,
        SENDER_ID,
        SMS_TYPE,
        "DeliveryStatusIAMRole",
        "DeliveryStatusSuccessSamplingRate",
        "UsageReportS3Bucket",
    )
)
_SMS_TYPES: Final = ("Promotional", "Transactional")

_RATE = re.compile(r"(?:100|[0-9]{1,2})\Z")
_PHONE = re.compile(r"\+?[1-9][0-9]{1,14}\Z")  # E.164
_SANDBOX_PHONE = re.compile(r"\+[0-9]{8,19}\Z")
_PASSWORD = re.compile(r"[0-9]{5,8}\Z")
# Without quotes, brackets and separators, which could add a second recipient.
_MAIL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\Z")


# ── Platform applications ────────────────────────────────────────────────────────────────────


def check_application(name: str | None, platform: str | None) -> tuple[str, str]:
    """Return the name and the platform of a new application."""
    if name is None:
        raise null_value("name")
    if not name:
        raise invalid(name, "cannot be empty")
    if len(name) > NAME_CHARS_MAX:
        raise invalid(name, f"must be at most {NAME_CHARS_MAX} characters long")
    if not _is_name(name):
        text = "must contain only characters 'a'-'z', 'A'-'Z', '0'-'9', '_', '-', and '.'"
        raise invalid(name, text)
    if platform is None:
        raise null_value("platform")
    if platform not in PLATFORMS:
        raise invalid("Platform", f"{cut(platform)} is not supported")
    return name, platform


class ApplicationAttributes(msgspec.Struct, frozen=True):
    shown: dict[str, str]
    secrets: dict[str, str]


def read_application(
    given: Mapping[str, str] | None, platform: str, *, is_new: bool
) -> ApplicationAttributes:
    """Check the attributes of a request to create or change an application."""
    if not given:
        raise null_value("attributes")
    for name, text in given.items():
        if name not in _APPLICATION_ATTRIBUTES:
            raise _unknown(name)
        most = CREDENTIAL_CHARS_MAX if name in (PRINCIPAL, CREDENTIAL) else TEXT_CHARS_MAX
        if len(text) > most:
            raise _bad_value(name, f"must be at most {most} characters long")
    rate = given.get(_SAMPLE_RATE, "0")
    if _RATE.match(rate) is None:
        text = f"{cut(rate)} value provided is not an integer between 0-100"
        raise _bad_value(_SAMPLE_RATE, text)
    secrets = {name: given[name] for name in (PRINCIPAL, CREDENTIAL) if name in given}
    if len(secrets) == 1 and (is_new or PRINCIPAL in secrets):
        [name] = secrets
        if name == PRINCIPAL:
            raise invalid("Attributes", f"{PRINCIPAL} attribute provided without {CREDENTIAL}")
        if platform != _WITHOUT_PRINCIPAL:
            raise invalid("Attributes", f"{CREDENTIAL} attribute provided without {PRINCIPAL}")
    shown = {name: text for name, text in given.items() if name not in secrets}
    if ENABLED in shown:
        shown[ENABLED] = _boolean(shown[ENABLED])
    return ApplicationAttributes(shown, secrets)


# ── Platform endpoints ───────────────────────────────────────────────────────────────────────


def with_attributes(endpoint: PlatformEndpoint, given: Mapping[str, str]) -> PlatformEndpoint:
    """Return an endpoint with the attributes of a request to create or change it."""
    for name in given:
        if name not in _ENDPOINT_ATTRIBUTES:
            raise _unknown(name)
    enabled = _boolean(given.get(ENABLED, "true" if endpoint.is_enabled else "false"))
    token = given.get(TOKEN, endpoint.token)
    if not token:
        raise _bad_value(TOKEN, "cannot be empty")
    if len(token) > TOKEN_CHARS_MAX:
        raise _bad_value(TOKEN, f"must be at most {TOKEN_CHARS_MAX} characters long")
    user_data = given.get(USER_DATA, endpoint.user_data)
    if len(user_data.encode(errors="replace")) > USER_DATA_BYTES_MAX:
        text = f"must be at most {USER_DATA_BYTES_MAX} bytes long in UTF-8 encoding"
        raise _bad_value(USER_DATA, text)
    return msgspec.structs.replace(
        endpoint, is_enabled=enabled == "true", token=token, user_data=user_data
    )


def show_endpoint(endpoint: PlatformEndpoint) -> dict[str, str]:
    shown = {ENABLED: "true" if endpoint.is_enabled else "false", TOKEN: endpoint.token}
    return shown | ({USER_DATA: endpoint.user_data} if endpoint.user_data else {})


def endpoint_exists(arn: str) -> Fault:
    text = f"Endpoint {arn} already exists with the same Token, but different attributes."
    return invalid(TOKEN, text)


def _boolean(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise _bad_value(ENABLED, "must be true or false")
    return text.lower()


def _unknown(name: str) -> Fault:
    return invalid("Attributes", f"Invalid attribute name: {cut(name)}")


def _bad_value(name: str, text: str) -> Fault:
    return invalid("Attributes", f"Invalid value for attribute: {name}: {text}")


# ── Text messages ────────────────────────────────────────────────────────────────────────────


def check_sms_attributes(given: Mapping[str, str] | None) -> Mapping[str, str]:
    if given is None:
        raise null_value("attributes")
    for name, text in given.items():
        if name not in _SMS_ATTRIBUTES:
            raise fault("InvalidParameter", f"{cut(name)} is not a valid attribute")
        is_type = name != SMS_TYPE or text in _SMS_TYPES
        if not is_type or len(text) > TEXT_CHARS_MAX:
            raise fault("InvalidParameter", f"{name} is invalid")
    return given


def show_sms(attributes: Mapping[str, str], names: list[str] | None) -> dict[str, str]:
    shown = {SPEND_LIMIT: "1", **attributes}
    return {name: text for name, text in shown.items() if not names or name in names}


def check_number(number: str | None) -> str:
    """Return the phone number of a request about numbers that do not want messages."""
    if not number:
        raise null_value("phoneNumber")
    if _PHONE.match(number) is None:
        text = f"{cut(number)} is not a valid phone number in E.164 format"
        raise invalid("PhoneNumber", text)
    return number


def check_sandbox_number(number: str | None) -> str:
    if not number:
        raise null_value("phoneNumber")
    if _SANDBOX_PHONE.match(number) is None:
        text = f"{cut(number)} is not a phone number in E.164 format, such as +15550100999"
        raise invalid("PhoneNumber", text)
    return number


def check_password(text: str | None) -> str:
    if not text:
        raise null_value("oneTimePassword")
    if _PASSWORD.match(text) is None:
        raise invalid("OneTimePassword", "must have 5 to 8 digits")
    return text


# ── Messages ────────────────────────────────────────────────────────────────────────────────


def is_mail_address(text: str) -> bool:
    return len(text) <= MAIL_CHARS_MAX and _MAIL.match(text) is not None


def text_for(texts: Mapping[str, str], protocol: str, endpoint: str) -> str:
    """Return the text for an endpoint of a message with MessageStructure=json. A platform endpoint
    gets that of its platform, which is in its ARN."""
    names = [protocol, "default"]
    if protocol == "application":
        names[:0] = endpoint.partition(":endpoint/")[2].split("/", 1)[:1]
    return next(texts[name] for name in names if name in texts)


_SMS_DEFAULTS: Final = {SENDER_ID: "AWS.SNS.SMS.SenderID", SMS_TYPE: "AWS.SNS.SMS.SMSType"}


def with_sms_defaults(
    book: SmsBook, attributes: Mapping[str, Attribute]
) -> Mapping[str, Attribute]:
    """Return the attributes of a text message, with the tenant's settings for those it lacks."""
    found = {
        name: Attribute("String", book.attributes[setting].encode(errors="replace"))
        for setting, name in _SMS_DEFAULTS.items()
        if setting in book.attributes
    }
    return {**found, **attributes} if found else attributes
