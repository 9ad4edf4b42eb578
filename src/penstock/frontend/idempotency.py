"""Fifth stage: a request that comes again gets the answer that the first one got.

A client whose connection breaks does not know whether its message was taken, and sends it again.
SDKs say so: ``amz-sdk-invocation-id`` stays the same over all attempts of one call, and
``amz-sdk-request`` counts them. Who makes requests by hand gives ``x-penstock-request-token``, any
text of its own choice. The second attempt finds the first one's answer for five minutes, or waits
for it while it is under way; for that the first one is carried out to its end even though its
client has gone (``outlives``).

Only what would do harm twice is remembered: a standard queue would have two messages, a queue that
was just deleted could not be deleted again. FIFO queues and Kafka's producers tell duplicates apart
by themselves. A receive that is repeated leases other messages, and the first lease runs out.

Remembering is on the path of every send, so it is kept cheap: an SDK's first attempt is noted and
not looked up, and of the content there is a checksum, which is compared when the token comes again:
the same token with another content, or from somebody else, is another request. Answers are written
on small sheets, one after the other, and forgotten by the sheet: adding one touches little memory,
letting go of a sheet holds nobody up, and what comes again, which is seldom, is looked for on all
of them. The memory is lost with the process, and bounded: at full load it holds seconds instead of
minutes."""

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.model.identity import Caller
from penstock.net.exchange import HttpRequest
from penstock.record.crc32c import crc32c
from penstock.wire.aws import query
from penstock.wire.aws.faults import invalid_value
from penstock.wire.aws.shapes import SendMessageBatchReply

HEADER_OWN: Final = "x-penstock-request-token"
HEADER_SDK: Final = "amz-sdk-invocation-id"
HEADER_ATTEMPT: Final = "amz-sdk-request"
TOKEN_CHARS_MAX: Final = 128
WINDOW_SECONDS: Final = 300.0
MESSAGES_MAX: Final = 50_000  # answers, and the messages in those to batches; 500 bytes each
SHEETS: Final = 250  # that these are spread over; so many are looked through at most, and some more
SHEET_SECONDS: Final = 10.0  # what is forgotten for its age goes by so much at once
AGED_AT_ONCE: Final = 2  # sheets; one more than is filled, so it comes to an end

_BATCH: Final = "SendMessageBatch"
_SENDS: Final = frozenset(("SendMessage", _BATCH))
REPEATABLE: Final = _SENDS | frozenset(
    (
        "AddPermission",
        "CancelMessageMoveTask",
        "DeleteQueue",
        "PurgeQueue",
        "RemovePermission",
        "StartMessageMoveTask",
    )
)

# An SDK's token is drawn from so many that no two are the same. One that somebody thought of is
# only good together with who that is and what it is for.
Key = str | tuple[str, str, str, int]
Found = tuple[Key, bool]


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """An answer, and the request that it was for."""

    answer: Any
    at_s: float
    caller: Caller
    action: str
    region: str
    content: int

    def is_for(self, call: Call, action: str, now_s: float) -> bool:
        caller = call.caller
        return (
            now_s - self.at_s < WINDOW_SECONDS
            and (self.caller.account, self.caller.user) == (caller.account, caller.user)
            and (self.action, self.region) == (action, call.region)
            and self.content == _content_of(call.request)
        )


def found_by(call: Call, action: str) -> Found | None:
    """What the request is found by, and whether its client says that it is the first of its kind:
    there is nothing to look for then. None: it is not one to remember, as nothing is whose client
    would not say so if it came again. For an action that is ``REPEATABLE``."""
    headers = call.request.headers
    token = headers.get(HEADER_SDK)
    own = headers.get(HEADER_OWN)
    if token is None and own is None:
        return None
    url = getattr(call.asked, "queue_url", None)
    if url is not None and url.endswith(".fifo") and action in _SENDS:
        return None
    if own is not None:
        if not 1 <= len(own) <= TOKEN_CHARS_MAX:
            reason = f"Must be 1 to {TOKEN_CHARS_MAX} characters long."
            raise invalid_value(own, HEADER_OWN, reason)
        caller = call.caller
        return (caller.account, caller.user, own, _content_of(call.request)), False
    if token is None or len(token) > TOKEN_CHARS_MAX:
        return None
    attempt = headers.get(HEADER_ATTEMPT, "")
    return token, attempt == "attempt=1" or _is_first(attempt)


def outlives(request: HttpRequest) -> bool:
    """Whether it is carried out to its end although its client has gone."""
    target = request.headers.get("x-amz-target")
    if target is not None:
        return target.rpartition(".")[2] in REPEATABLE
    return query.action_in(request.query, request.body) in REPEATABLE


class _Sheet:
    """Answers that were given one after the other."""

    __slots__ = ("answers", "full_s", "last_s", "messages")

    def __init__(self, now_s: float) -> None:
        self.answers: dict[Key, _Kept] = {}
        self.full_s = now_s + SHEET_SECONDS  # from then on it takes no more
        self.last_s = now_s
        self.messages = 0


class Answers:
    """Given lately, or about to be."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX) -> None:
        self._sheet_max = max(1, messages_max // SHEETS)
        # Filled sheets; the one being filled comes on top, and may go beyond by one batch.
        self._filled_max = messages_max - self._sheet_max
        self._under_way: dict[Key, asyncio.Future[None] | None] = {}  # a future: others wait for it
        self._sheet = _Sheet(0.0)
        self._filled: deque[_Sheet] = deque()  # oldest first
        self._filled_messages = 0
        self.repeated_count = 0

    def __len__(self) -> int:
        return len(self._sheet.answers) + sum(len(sheet.answers) for sheet in self._filled)

    async def once(self, context: Context, call: Call, found: Found, now_s: float) -> Any:
        """Carry the call out, unless that has been done. ``now_s``: when the request came, by a
        clock that only goes forward."""
        action = call.action
        assert action is not None, "decode found an action or raised"
        key, is_first = found
        if not is_first:
            kept = await self._find(key)
            if kept is not None and kept.is_for(call, action.name, now_s):
                self.repeated_count += 1
                return kept.answer
            call.topic = None  # it may have changed meanwhile
        under_way = self._under_way
        under_way.setdefault(key, None)  # it may be there: two call themselves the first
        try:
            answer = await action.run(context, call, call.asked)
        except BaseException:
            self._ended(key)  # whoever waits, or comes again, tries again
            raise
        sheet = self._sheet
        request = call.request
        content = crc32c(request.body)
        if request.path != "/" or request.query:
            content = _content_of(request)
        name = action.name
        sheet.answers[key] = _Kept(answer, now_s, call.caller, name, call.region, content)
        waited_for = under_way.pop(key, None)
        if waited_for is not None:
            waited_for.set_result(None)
        messages = sheet.messages + (1 if name != _BATCH else 1 + _messages_in(answer))
        sheet.messages = messages
        if messages >= self._sheet_max or now_s >= sheet.full_s:
            self._turn_over(now_s)
        return answer

    def _ended(self, key: Key) -> None:
        waited_for = self._under_way.pop(key, None)
        if waited_for is not None:
            waited_for.set_result(None)

    async def _find(self, key: Key) -> _Kept | None:
        """The newest answer, once there is one; None: there is none, and none is about to be
        given."""
        under_way = self._under_way
        while key in under_way:
            waited_for = under_way[key]
            if waited_for is None:
                waited_for = under_way[key] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waited_for)  # others wait for the same
        kept = self._sheet.answers.get(key)
        if kept is not None:
            return kept
        for sheet in reversed(self._filled):
            kept = sheet.answers.get(key)
            if kept is not None:
                return kept
        return None

    def _turn_over(self, now_s: float) -> None:
        """Begin a new sheet, and forget those that are too much or too old."""
        sheet, filled = self._sheet, self._filled
        sheet.last_s = now_s
        filled.append(sheet)
        self._filled_messages += sheet.messages
        self._sheet = _Sheet(now_s)
        aged = 0
        while filled and (
            self._filled_messages > self._filled_max
            or (aged < AGED_AT_ONCE and now_s - filled[0].last_s >= WINDOW_SECONDS)
        ):
            aged += 1
            self._filled_messages -= filled.popleft().messages


def _content_of(request: HttpRequest) -> int:
    """Queues and forms may stand in the address as well."""
    content = crc32c(request.body)
    if request.path == "/" and not request.query:
        return content
    return crc32c(f"{request.path}?{request.query}".encode(), content)


def _messages_in(answer: SendMessageBatchReply) -> int:
    return len(answer.successful or ()) + len(answer.failed or ())


def _is_first(attempt: str) -> bool:
    """From such as ``attempt=1; max=3`` and ``ttl=20260101T000000Z; attempt=2; max=3``. Without a
    number it may be any, so it is looked up."""
    _, _, rest = attempt.partition("attempt=")
    return rest.partition(";")[0].strip() == "1"
