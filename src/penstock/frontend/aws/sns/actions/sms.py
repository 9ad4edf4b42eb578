"""Actions on settings for text messages and on phone numbers. They exist only where text messages
can be sent: through a gateway, or to the outbox.

The gateway knows which numbers do not want messages, and from which number it sends: this server
has no such lists. A number of the sandbox is verified by a password that is sent to it. No account
is in the sandbox, so that messages may also be sent to other numbers."""

import hmac
from typing import Final

import msgspec

from penstock.frontend.aws.context import Call
from penstock.frontend.aws.sns.actions.address_books import books_for
from penstock.frontend.aws.sns.actions.direct import SMS, carry
from penstock.model.address_book import SandboxNumber, SmsBook
from penstock.model.limits import MINUTE_MS, SANDBOX_NUMBERS_MAX
from penstock.model.names import uuid_text
from penstock.model.sent_message import SentMessage
from penstock.wire.aws.sns import book_rules
from penstock.wire.aws.sns import book_shapes as shapes
from penstock.wire.aws.sns.faults import fault, invalid

PASSWORD_DIGITS: Final = 6
PASSWORD_MS: Final = 15 * MINUTE_MS
TRIES_MAX: Final = 5  # wrong passwords: a hundred thousand guesses would be needed
PAGE: Final = 100
_NUMBERS_PER_REPLY: Final = range(1, 101)


async def get_attributes(
    call: Call, request: shapes.GetSMSAttributesRequest
) -> shapes.GetSMSAttributesReply:
    book = books_for(call, SMS).sms(call.account, call.region)
    shown = book_rules.show_sms(book.attributes, request.attributes)
    return shapes.GetSMSAttributesReply(attributes=shown)


async def set_attributes(
    call: Call, request: shapes.SetSMSAttributesRequest
) -> shapes.SetSMSAttributesReply:
    books = books_for(call, SMS)
    given = book_rules.check_sms_attributes(request.attributes)

    def change(book: SmsBook) -> SmsBook:
        after = {**book.attributes, **given}
        kept = {name: text for name, text in after.items() if text}  # an empty text removes it
        return msgspec.structs.replace(book, attributes=kept)

    await books.change_sms(call.account, call.region, change)
    return shapes.SetSMSAttributesReply()


# ── Numbers that do not want messages, and numbers of senders ────────────────────────────────


async def is_opted_out(
    call: Call, request: shapes.CheckIfPhoneNumberIsOptedOutRequest
) -> shapes.CheckIfPhoneNumberIsOptedOutReply:
    books_for(call, SMS)
    book_rules.check_number(request.phone_number)
    return shapes.CheckIfPhoneNumberIsOptedOutReply(is_opted_out=False)


async def list_opted_out(
    call: Call, _request: shapes.ListPhoneNumbersOptedOutRequest
) -> shapes.ListPhoneNumbersOptedOutReply:
    books_for(call, SMS)
    return shapes.ListPhoneNumbersOptedOutReply(phone_numbers=[])


async def opt_in(
    call: Call, request: shapes.OptInPhoneNumberRequest
) -> shapes.OptInPhoneNumberReply:
    books_for(call, SMS)
    book_rules.check_number(request.phone_number)
    return shapes.OptInPhoneNumberReply()


async def list_origination_numbers(
    call: Call, _request: shapes.ListOriginationNumbersRequest
) -> shapes.ListOriginationNumbersReply:
    books_for(call, SMS)
    return shapes.ListOriginationNumbersReply(phone_numbers=[])


# ── The sandbox ──────────────────────────────────────────────────────────────────────────────


async def sandbox_status(
    call: Call, _request: shapes.GetSMSSandboxAccountStatusRequest
) -> shapes.GetSMSSandboxAccountStatusReply:
    books_for(call, SMS)
    return shapes.GetSMSSandboxAccountStatusReply(is_in_sandbox=False)


async def create_number(
    call: Call, request: shapes.CreateSMSSandboxPhoneNumberRequest
) -> shapes.CreateSMSSandboxPhoneNumberReply:
    """Send a new password to a number. A number that is verified stays verified."""
    books, context = books_for(call, SMS), call.context
    number, now_ms = book_rules.check_sandbox_number(request.phone_number), context.clock.wall_ms()
    chance = int.from_bytes(context.entropy(8)) % 10**PASSWORD_DIGITS
    password = f"{chance:0{PASSWORD_DIGITS}d}"
    is_verified = False

    def change(book: SmsBook) -> SmsBook:
        nonlocal is_verified
        known = book.numbers.get(number)
        is_verified = known is not None and not known.code
        if is_verified:
            return book
        if known is None and len(book.numbers) >= SANDBOX_NUMBERS_MAX:
            text = f"The sandbox has {SANDBOX_NUMBERS_MAX} of {SANDBOX_NUMBERS_MAX} phone numbers."
            raise fault("UserError", f"{text} Delete one.")
        if known is not None and now_ms - known.sent_at_ms < MINUTE_MS:
            text = "A password was sent to this number less than a minute ago; retry later."
            raise fault("Throttled", text)
        waiting = SandboxNumber(password, now_ms)
        return msgspec.structs.replace(book, numbers={**book.numbers, number: waiting})

    await books.change_sms(call.account, call.region, change)
    if not is_verified:
        text = f"Your verification code is {password}."
        message_id = uuid_text(context.entropy(16))
        await carry(call, SMS, SentMessage(message_id, number, text.encode(), now_ms))
    return shapes.CreateSMSSandboxPhoneNumberReply()


async def verify_number(
    call: Call, request: shapes.VerifySMSSandboxPhoneNumberRequest
) -> shapes.VerifySMSSandboxPhoneNumberReply:
    books = books_for(call, SMS)
    number = book_rules.check_sandbox_number(request.phone_number)
    password = book_rules.check_password(request.one_time_password)
    now_ms, is_right = call.context.clock.wall_ms(), False

    def change(book: SmsBook) -> SmsBook:
        nonlocal is_right
        known = book.numbers.get(number)
        if known is None:
            raise fault("ResourceNotFound")
        if known.tries >= TRIES_MAX or now_ms - known.sent_at_ms > PASSWORD_MS:
            return book
        is_right = hmac.compare_digest(known.code, password)
        after = msgspec.structs.replace(known, tries=known.tries + 1)
        return msgspec.structs.replace(
            book, numbers={**book.numbers, number: SandboxNumber() if is_right else after}
        )

    await books.change_sms(call.account, call.region, change)
    if not is_right:
        raise fault("VerificationException")
    return shapes.VerifySMSSandboxPhoneNumberReply()


async def delete_number(
    call: Call, request: shapes.DeleteSMSSandboxPhoneNumberRequest
) -> shapes.DeleteSMSSandboxPhoneNumberReply:
    books = books_for(call, SMS)
    number = book_rules.check_sandbox_number(request.phone_number)

    def change(book: SmsBook) -> SmsBook:
        if number not in book.numbers:
            raise fault("ResourceNotFound")
        kept = {one: each for one, each in book.numbers.items() if one != number}
        return msgspec.structs.replace(book, numbers=kept)

    await books.change_sms(call.account, call.region, change)
    return shapes.DeleteSMSSandboxPhoneNumberReply()


async def list_numbers(
    call: Call, request: shapes.ListSMSSandboxPhoneNumbersRequest
) -> shapes.ListSMSSandboxPhoneNumbersReply:
    book = books_for(call, SMS).sms(call.account, call.region)
    count = PAGE if request.max_results is None else request.max_results
    if count not in _NUMBERS_PER_REPLY:
        raise invalid("MaxResults", "must be 1 to 100")
    after = request.next_token or ""
    found = sorted(number for number in book.numbers if number > after)
    shown = [
        shapes.SMSSandboxPhoneNumber(
            phone_number=number, status="Pending" if book.numbers[number].code else "Verified"
        )
        for number in found[:count]
    ]
    return shapes.ListSMSSandboxPhoneNumbersReply(
        phone_numbers=shown, next_token=found[count - 1] if len(found) > count else None
    )
