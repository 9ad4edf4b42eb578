"""Actions on mobile apps (platform applications) and their devices (platform endpoints). They exist
only where messages to devices can be sent: through a gateway, or to the outbox."""

import base64
import binascii
from typing import Final

import msgspec

from penstock.frontend.aws.context import Call
from penstock.model.address_book import PlatformApplication, PlatformEndpoint
from penstock.model.errors import Conflict, NotFound
from penstock.model.names import uuid_text
from penstock.model.ports import AddressBooks
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import arns, book_rules
from penstock.wire.aws.sns import book_shapes as shapes
from penstock.wire.aws.sns.arns import ApplicationArn, EndpointArn
from penstock.wire.aws.sns.faults import fault, invalid, no_gateway, null_value

PAGE: Final = 100  # applications or endpoints of one reply
APPLICATION: Final = "application"
_TOKEN_CHARS_MAX: Final = 1_024  # of NextToken


def books_for(call: Call, protocol: str) -> AddressBooks:
    """Return the address books. Raises InvalidAction if this server cannot send such messages."""
    couriers, books = call.context.couriers, call.context.books
    if couriers is None or books is None or protocol not in couriers.relayed:
        raise no_gateway(call.action.name)
    return books


def application_not_found() -> Fault:
    return fault("NotFound", "PlatformApplication does not exist")


def endpoint_not_found() -> Fault:
    return fault("NotFound", "Endpoint does not exist")


# ── Applications ─────────────────────────────────────────────────────────────────────────────


def _key(address: ApplicationArn) -> tuple[str, str, str, str]:
    return address.account, address.region, address.platform, address.name


def _is_here(call: Call, address: ApplicationArn) -> bool:
    """Return whether an ARN is of the caller's account and region; others do not exist."""
    return (address.account, address.region) == (call.account, call.region)


def _application(
    call: Call, arn: str | None
) -> tuple[AddressBooks, ApplicationArn, PlatformApplication]:
    books = books_for(call, APPLICATION)
    address = arns.parse_application(arn, caller=call.account)
    found = books.application(_key(address)) if _is_here(call, address) else None
    if found is None:
        raise application_not_found()
    return books, address, found


def _shown(application: PlatformApplication) -> dict[str, str]:
    return {book_rules.ENABLED: "true", **application.attributes}


async def create_application(
    call: Call, request: shapes.CreatePlatformApplicationRequest
) -> shapes.CreatePlatformApplicationReply:
    books = books_for(call, APPLICATION)
    name, platform = book_rules.check_application(request.name, request.platform)
    given = book_rules.read_application(request.attributes, platform, is_new=True)
    now_ms = call.context.clock.wall_ms()
    new = PlatformApplication(call.account, call.region, platform, name, now_ms, given.shown)
    new = books.with_secrets(new, given.secrets)
    found = await books.create_application(new)
    if found is not new and (_shown(found), books.secrets(found)) != (_shown(new), given.secrets):
        text = "An application with the same name but different properties already exists"
        raise invalid("Name", text)
    return shapes.CreatePlatformApplicationReply(platform_application_arn=found.arn)


async def delete_application(call: Call, request: shapes.DeletePlatformApplicationRequest) -> None:
    books = books_for(call, APPLICATION)
    address = arns.parse_application(request.platform_application_arn, caller=call.account)
    if _is_here(call, address):
        await books.delete_application(_key(address))


async def list_applications(
    call: Call, request: shapes.ListPlatformApplicationsRequest
) -> shapes.ListPlatformApplicationsReply:
    books = books_for(call, APPLICATION)
    platform, _, name = _read_token(request.next_token).partition("/")
    found = books.applications(call.account, call.region, after=(platform, name), count=PAGE + 1)
    shown = [
        shapes.PlatformApplication(platform_application_arn=one.arn, attributes=_shown(one))
        for one in found[:PAGE]
    ]
    last = found[PAGE - 1] if len(found) > PAGE else None
    next_token = None if last is None else _token(f"{last.platform}/{last.name}")
    return shapes.ListPlatformApplicationsReply(platform_applications=shown, next_token=next_token)


async def get_application_attributes(
    call: Call, request: shapes.GetPlatformApplicationAttributesRequest
) -> shapes.GetPlatformApplicationAttributesReply:
    _, _, found = _application(call, request.platform_application_arn)
    return shapes.GetPlatformApplicationAttributesReply(attributes=_shown(found))


async def set_application_attributes(
    call: Call, request: shapes.SetPlatformApplicationAttributesRequest
) -> None:
    books, address, _ = _application(call, request.platform_application_arn)
    given = book_rules.read_application(request.attributes, address.platform, is_new=False)

    def change(current: PlatformApplication) -> PlatformApplication:
        after = {**current.attributes, **given.shown}
        kept = {name: text for name, text in after.items() if text}  # an empty text removes it
        changed = msgspec.structs.replace(current, attributes=kept)
        if not given.secrets:
            return changed
        return books.with_secrets(changed, {**books.secrets(current), **given.secrets})

    try:
        await books.change_application(_key(address), change)
    except NotFound:
        raise application_not_found() from None


# ── Endpoints ────────────────────────────────────────────────────────────────────────────────


def find_endpoint(call: Call, address: EndpointArn) -> PlatformEndpoint | None:
    """Return an endpoint of the caller's account and region."""
    where, books = address.application, call.context.books
    if books is None or not _is_here(call, where):
        return None
    found = books.endpoint(where.account, where.region, address.id)
    # The rest of the ARN must be right too.
    is_same = found is not None and (found.platform, found.application) == _key(where)[2:]
    return found if is_same else None


def _endpoint(call: Call, arn: str | None) -> tuple[AddressBooks, PlatformEndpoint]:
    books = books_for(call, APPLICATION)
    found = find_endpoint(call, arns.parse_endpoint(arn, caller=call.account))
    if found is None:
        raise endpoint_not_found()
    return books, found


async def create_endpoint(
    call: Call, request: shapes.CreatePlatformEndpointRequest
) -> shapes.CreatePlatformEndpointReply:
    books, address, _ = _application(call, request.platform_application_arn)
    if request.token is None:
        raise null_value("token")
    if not request.token:
        raise invalid("Token", "cannot be empty")
    given = {book_rules.TOKEN: request.token}
    if request.custom_user_data is not None:
        given[book_rules.USER_DATA] = request.custom_user_data
    new = PlatformEndpoint(
        uuid_text(call.context.entropy(16)),
        address.account,
        address.region,
        address.platform,
        address.name,
        request.token,
        call.context.clock.wall_ms(),
    )
    new = book_rules.with_attributes(new, {**given, **(request.attributes or {})})
    found = await books.create_endpoint(new)
    if book_rules.show_endpoint(found) != book_rules.show_endpoint(new):
        raise book_rules.endpoint_exists(found.arn)
    return shapes.CreatePlatformEndpointReply(endpoint_arn=found.arn)


async def delete_endpoint(call: Call, request: shapes.DeleteEndpointRequest) -> None:
    books = books_for(call, APPLICATION)
    found = find_endpoint(call, arns.parse_endpoint(request.endpoint_arn, caller=call.account))
    if found is not None:
        await books.delete_endpoint(found.account, found.region, found.id)


async def list_endpoints(
    call: Call, request: shapes.ListEndpointsByPlatformApplicationRequest
) -> shapes.ListEndpointsByPlatformApplicationReply:
    books, address, _ = _application(call, request.platform_application_arn)
    after = _read_token(request.next_token)
    found = books.endpoints(_key(address), after=after, count=PAGE + 1)
    shown = [
        shapes.Endpoint(endpoint_arn=one.arn, attributes=book_rules.show_endpoint(one))
        for one in found[:PAGE]
    ]
    next_token = _token(found[PAGE - 1].id) if len(found) > PAGE else None
    return shapes.ListEndpointsByPlatformApplicationReply(endpoints=shown, next_token=next_token)


async def get_endpoint_attributes(
    call: Call, request: shapes.GetEndpointAttributesRequest
) -> shapes.GetEndpointAttributesReply:
    _, found = _endpoint(call, request.endpoint_arn)
    return shapes.GetEndpointAttributesReply(attributes=book_rules.show_endpoint(found))


async def set_endpoint_attributes(call: Call, request: shapes.SetEndpointAttributesRequest) -> None:
    books, found = _endpoint(call, request.endpoint_arn)
    given = request.attributes
    if not given:
        raise null_value("attributes")
    try:
        await books.change_endpoint(
            found.account,
            found.region,
            found.id,
            lambda current: book_rules.with_attributes(current, given),
        )
    except NotFound:
        raise endpoint_not_found() from None
    except Conflict:
        raise invalid("Token", "another endpoint of this application has the same Token") from None


def _token(last: str) -> str:
    return base64.b64encode(last.encode()).decode()


def _read_token(token: str | None) -> str:
    try:
        return base64.b64decode((token or "")[:_TOKEN_CHARS_MAX].encode(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("NextToken") from None
