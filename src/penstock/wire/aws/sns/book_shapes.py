"""Typed requests and replies of the 21 SNS operations on address books: mobile apps and their
devices, and phone numbers. The rules are those of ``shapes.py``.

The older operations on phone numbers write the first letter of each name small."""

from collections.abc import Mapping

import msgspec

from penstock.wire.aws.shapes import Operation, operations
from penstock.wire.aws.sns.shapes import Part, SnsReply, SnsRequest


class BookRequest(SnsRequest): ...


class ApplicationRequest(BookRequest):
    platform_application_arn: str | None = None


class EndpointRequest(BookRequest):
    endpoint_arn: str | None = None


class NumberRequest(BookRequest):
    phone_number: str | None = None


class BookReply(SnsReply): ...


# ── Platform applications and endpoints ──────────────────────────────────────────────────────


class PlatformApplication(Part):
    platform_application_arn: str
    attributes: dict[str, str]


class Endpoint(Part):
    endpoint_arn: str
    attributes: dict[str, str]


class CreatePlatformApplicationRequest(BookRequest):
    name: str | None = None
    platform: str | None = None
    attributes: dict[str, str] | None = None


class CreatePlatformApplicationReply(BookReply):
    platform_application_arn: str


class DeletePlatformApplicationRequest(ApplicationRequest): ...


class ListPlatformApplicationsRequest(BookRequest):
    next_token: str | None = None


class ListPlatformApplicationsReply(BookReply):
    platform_applications: list[PlatformApplication]
    next_token: str | None = None


class GetPlatformApplicationAttributesRequest(ApplicationRequest): ...


class GetPlatformApplicationAttributesReply(BookReply):
    attributes: dict[str, str]


class SetPlatformApplicationAttributesRequest(ApplicationRequest):
    attributes: dict[str, str] | None = None


class CreatePlatformEndpointRequest(ApplicationRequest):
    token: str | None = None
    custom_user_data: str | None = None
    attributes: dict[str, str] | None = None


class CreatePlatformEndpointReply(BookReply):
    endpoint_arn: str


class DeleteEndpointRequest(EndpointRequest): ...


class ListEndpointsByPlatformApplicationRequest(ApplicationRequest):
    next_token: str | None = None


class ListEndpointsByPlatformApplicationReply(BookReply):
    endpoints: list[Endpoint]
    next_token: str | None = None


class GetEndpointAttributesRequest(EndpointRequest): ...


class GetEndpointAttributesReply(BookReply):
    attributes: dict[str, str]


class SetEndpointAttributesRequest(EndpointRequest):
    attributes: dict[str, str] | None = None


# ── Phone numbers ────────────────────────────────────────────────────────────────────────────


class SMSSandboxPhoneNumber(Part):
    phone_number: str
    status: str


class GetSMSAttributesRequest(BookRequest):
    attributes: list[str] | None = msgspec.field(default=None, name="attributes")


class GetSMSAttributesReply(BookReply):
    attributes: dict[str, str] = msgspec.field(name="attributes")


class SetSMSAttributesRequest(BookRequest):
    attributes: dict[str, str] | None = msgspec.field(default=None, name="attributes")


class SetSMSAttributesReply(BookReply): ...


class CheckIfPhoneNumberIsOptedOutRequest(BookRequest):
    phone_number: str | None = msgspec.field(default=None, name="phoneNumber")


class CheckIfPhoneNumberIsOptedOutReply(BookReply):
    is_opted_out: bool = msgspec.field(name="isOptedOut")


class ListPhoneNumbersOptedOutRequest(BookRequest):
    next_token: str | None = msgspec.field(default=None, name="nextToken")


class ListPhoneNumbersOptedOutReply(BookReply):
    phone_numbers: list[str] = msgspec.field(name="phoneNumbers")
    next_token: str | None = msgspec.field(default=None, name="nextToken")


class OptInPhoneNumberRequest(BookRequest):
    phone_number: str | None = msgspec.field(default=None, name="phoneNumber")


class OptInPhoneNumberReply(BookReply): ...


class CreateSMSSandboxPhoneNumberRequest(NumberRequest):
    language_code: str | None = None


class CreateSMSSandboxPhoneNumberReply(BookReply): ...


class VerifySMSSandboxPhoneNumberRequest(NumberRequest):
    one_time_password: str | None = None


class VerifySMSSandboxPhoneNumberReply(BookReply): ...


class DeleteSMSSandboxPhoneNumberRequest(NumberRequest): ...


class DeleteSMSSandboxPhoneNumberReply(BookReply): ...


class ListSMSSandboxPhoneNumbersRequest(BookRequest):
    next_token: str | None = None
    max_results: int | None = None


class ListSMSSandboxPhoneNumbersReply(BookReply):
    phone_numbers: list[SMSSandboxPhoneNumber]
    next_token: str | None = None


class GetSMSSandboxAccountStatusRequest(BookRequest): ...


class GetSMSSandboxAccountStatusReply(BookReply):
    is_in_sandbox: bool


class ListOriginationNumbersRequest(BookRequest):
    next_token: str | None = None
    max_results: int | None = None


class ListOriginationNumbersReply(BookReply):
    phone_numbers: list[str]  # always empty: the gateway chooses the sender's number
    next_token: str | None = None


OPERATIONS: Mapping[str, Operation] = operations(BookRequest, BookReply)
