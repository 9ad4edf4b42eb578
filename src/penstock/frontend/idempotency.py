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
the same token with another content, or from somebody else, is another request. The memory is lost
with the process, and bounded: at full load it holds seconds instead of minutes."""

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
from penstock.wire.aws.faults import Fault, invalid_value
from penstock.wire.aws.shapes import QueueRequest, SendMessageBatchReply

HEADER_OWN: Final = "x-penstock-request-token"
HEADER_SDK: Final = "amz-sdk-invocation-id"
HEADER_ATTEMPT: Final = "amz-sdk-request"
TOKEN_CHARS_MAX: Final = 128
WINDOW_SECONDS: Final = 300.0
MESSAGES_MAX: Final = 50_000  # answers, and the messages in those to batches; 500 bytes each
FORGOTTEN_AT_ONCE: Final = 100  # more than any one answer counts

_SENDS: Final = frozenset(("SendMessage", "SendMessageBatch"))
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


def key_of(call: Call, action: str) -> tuple[Key, bool] | None:
    """What the request is found by, and whether its client says that it is the first of its kind:
    there is nothing to look for then. None: it is not one to remember. For an action that is
    ``REPEATABLE``."""
    asked = call.asked
    if action in _SENDS and isinstance(asked, QueueRequest):
        url = asked.queue_url
        if url is not None and url.endswith(".fifo"):
            return None
    headers = call.request.headers
    own = headers.get(HEADER_OWN)
    if own is not None:
        if not 1 <= len(own) <= TOKEN_CHARS_MAX:
            reason = f"Must be 1 to {TOKEN_CHARS_MAX} characters long."
            raise invalid_value(own, HEADER_OWN, reason)
        caller = call.caller
        return (caller.account, caller.user, own, _content_of(call.request)), False
    token = headers.get(HEADER_SDK)
    if token is None or len(token) > TOKEN_CHARS_MAX:
        return None
    attempt = headers.get(HEADER_ATTEMPT, "")
    return token, attempt == "attempt=1" or _is_first(attempt)


def outlives(request: HttpRequest) -> bool:
    """Whether it is carried out to its end although its client has gone."""
    target = request.headers.get("x-amz-target")
    if target is not None:
        return target.rpartition(".")[2] in REPEATABLE
    try:
        return query.fields_of(request.query, request.body).get("Action") in REPEATABLE
    except Fault:
        return False


class Answers:
    """Given lately, or about to be."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        # None: under way. A future: the same, and others wait for its end.
        self._known: dict[Key, _Kept | asyncio.Future[None] | None] = {}
        # Keys as they came, each of those known among them; of what failed one may be left over.
        self._order: deque[Key] = deque()
        self._oldest_s = 0.0  # nothing that is known is older
        self._batched = 0  # messages in answers to batches
        self.repeated_count = 0

    def __len__(self) -> int:
        return len(self._known)

    async def once(self, context: Context, call: Call, *, now_s: float) -> Any:
        """Carry the call out, unless that has been done. ``now_s``: when the request came, by a
        clock that only goes forward."""
        action = call.action
        assert action is not None, "decode found an action or raised"
        found = key_of(call, action.name)
        if found is None:
            return await action.run(context, call, call.asked)
        key, is_first = found
        if not is_first:
            kept = await self._find(key)
            if kept is not None and kept.is_for(call, action.name, now_s):
                self.repeated_count += 1
                return kept.answer
        known = self._known
        if key in known:
            self._forget_answer(key)
        else:
            self._order.append(key)
            known[key] = None
        try:
            answer = await action.run(context, call, call.asked)
        except BaseException:
            self._failed(key, now_s)
            raise
        before = known.get(key)
        known[key] = _Kept(
            answer, now_s, call.caller, action.name, call.region, _content_of(call.request)
        )
        if before is not None or isinstance(answer, SendMessageBatchReply):
            self._batched += _batched_in(answer)
            self._settle(before)
        if (
            len(self._order) + self._batched > self._messages_max
            or now_s - self._oldest_s >= WINDOW_SECONDS
        ):
            self._forget_some(now_s)
        return answer

    async def _find(self, key: Key) -> _Kept | None:
        """The answer, once there is one; None: there is none, and none is about to be given."""
        while key in self._known:
            found = self._known[key]
            if isinstance(found, _Kept):
                return found
            if found is None:
                found = self._known[key] = asyncio.get_running_loop().create_future()
            await asyncio.shield(found)  # others wait for the same
        return None

    def _settle(self, before: _Kept | asyncio.Future[None] | None) -> None:
        """Of what an answer has taken the place."""
        if isinstance(before, asyncio.Future):
            before.set_result(None)
        elif before is not None:
            self._batched -= _batched_in(before.answer)

    def _forget_answer(self, key: Key) -> None:
        """It is too old, or for another request: some clients call each of theirs the first."""
        found = self._known[key]
        if isinstance(found, _Kept):
            self._settle(found)
            self._known[key] = None

    def _failed(self, key: Key, now_s: float) -> None:
        """Whoever waits, or comes again, tries again."""
        found = self._known.get(key)
        if not isinstance(found, _Kept):
            self._known.pop(key, None)
            self._settle(found)
        if len(self._order) + self._batched > self._messages_max:
            self._forget_some(now_s)

    def _forget_some(self, now_s: float) -> None:
        """What is too much, and of what is too old a part: nobody pays for all of it."""
        known, order = self._known, self._order
        for _ in range(min(FORGOTTEN_AT_ONCE, len(order))):
            front = known.get(order[0])
            self._oldest_s = front.at_s if isinstance(front, _Kept) else now_s
            is_too_much = len(order) + self._batched > self._messages_max
            if not is_too_much and now_s - self._oldest_s < WINDOW_SECONDS:
                return
            key = order.popleft()
            if isinstance(front, _Kept):
                del known[key]
                self._settle(front)
            elif key in known:
                order.append(key)  # still under way


def _content_of(request: HttpRequest) -> int:
    """Queues and forms may stand in the address as well."""
    content = crc32c(request.body)
    if request.path == "/" and not request.query:
        return content
    return crc32c(f"{request.path}?{request.query}".encode(), content)


def _batched_in(answer: Any) -> int:
    if not isinstance(answer, SendMessageBatchReply):
        return 0
    return len(answer.successful or ()) + len(answer.failed or ())


def _is_first(attempt: str) -> bool:
    """From such as ``attempt=1; max=3`` and ``ttl=20260101T000000Z; attempt=2; max=3``. Without a
    number it may be any, so it is looked up."""
    _, _, rest = attempt.partition("attempt=")
    return rest.partition(";")[0].strip() == "1"
