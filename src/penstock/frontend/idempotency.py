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
MESSAGES_MAX: Final = 50_000  # answers, those of a batch counted by its messages; 600 bytes each
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
    path: str
    content: int

    def is_for(self, call: Call, action: str) -> bool:
        caller, request = call.caller, call.request
        return (
            (self.caller.account, self.caller.user) == (caller.account, caller.user)
            and (self.action, self.region, self.path) == (action, call.region, request.path)
            and self.content == _content_of(request)
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
        self._messages = 0
        self._kept: dict[Key, _Kept] = {}
        self._order: deque[Key] = deque()  # keys of what is kept, oldest first
        self._oldest_s = 0.0  # when the first of them came
        # The first of each kind, and what the others wait for once there are any.
        self._under_way: dict[Key, asyncio.Future[None] | None] = {}
        self.repeated_count = 0

    def __len__(self) -> int:
        return len(self._kept)

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
            while key in self._under_way:
                await self._end_of(key)
            kept = self._kept.get(key)
            if kept is not None and self._is_good(kept, call, action.name, now_s):
                return kept.answer
        under_way = self._under_way
        under_way.setdefault(key, None)
        try:
            answer = await action.run(context, call, call.asked)
        except BaseException:
            _wake(under_way.pop(key, None))  # whoever waits tries it again
            raise
        request = call.request
        content = _content_of(request)
        self._keep(
            key,
            _Kept(answer, now_s, call.caller, action.name, call.region, request.path, content),
            now_s,
        )
        waiters = under_way.pop(key, None)
        if waiters is not None:
            _wake(waiters)
        return answer

    def _is_good(self, kept: _Kept, call: Call, action: str, now_s: float) -> bool:
        if now_s - kept.at_s >= WINDOW_SECONDS or not kept.is_for(call, action):
            return False
        self.repeated_count += 1
        return True

    async def _end_of(self, key: Key) -> None:
        waiters = self._under_way[key]
        if waiters is None:
            waiters = self._under_way[key] = asyncio.get_running_loop().create_future()
        await asyncio.shield(waiters)  # others wait for the same

    def _keep(self, key: Key, new: _Kept, now_s: float) -> None:
        if key in self._kept:
            self._messages -= _messages_in(self._kept[key].answer)
        else:
            if not self._order:
                self._oldest_s = now_s
            self._order.append(key)
        self._kept[key] = new
        self._messages += _messages_in(new.answer)
        if self._messages > self._messages_max or now_s - self._oldest_s >= WINDOW_SECONDS:
            self._forget_some(now_s)

    def _forget_some(self, now_s: float) -> None:
        """What is too much, and of what is too old a part: nobody pays for all of it."""
        kept, order = self._kept, self._order
        for _ in range(FORGOTTEN_AT_ONCE):
            self._messages -= _messages_in(kept.pop(order.popleft()).answer)
            self._oldest_s = kept[order[0]].at_s if order else now_s
            if self._messages <= self._messages_max and now_s - self._oldest_s < WINDOW_SECONDS:
                break


def _wake(waiters: asyncio.Future[None] | None) -> None:
    if waiters is not None:
        waiters.set_result(None)


def _content_of(request: HttpRequest) -> int:
    """Forms may stand in the address as well."""
    content = crc32c(request.body)
    return content if not request.query else crc32c(request.query.encode(), content)


def _messages_in(answer: Any) -> int:
    if isinstance(answer, SendMessageBatchReply):
        return 1 + len(answer.successful or ()) + len(answer.failed or ())
    return 1


def _is_first(attempt: str) -> bool:
    """From such as ``attempt=1; max=3`` and ``ttl=20260101T000000Z; attempt=2; max=3``. Without a
    number it may be any, so it is looked up."""
    _, _, rest = attempt.partition("attempt=")
    return rest.partition(";")[0].strip() == "1"
