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

Remembering is on the path of every send. So an SDK's first attempt is only noted, never looked up,
and the whole of a request is noted as one number: caller, action, token and content, hashed with
this process's own random key. Nobody else's requests lead to a caller's answers, and the same token
with another content is another request. The memory is lost with the process, and bounded: at full
load it holds seconds instead of minutes."""

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.model.limits import MINUTE_MS
from penstock.net.exchange import HttpRequest
from penstock.wire.aws import query
from penstock.wire.aws.faults import Fault, invalid_value
from penstock.wire.aws.shapes import QueueRequest, SendMessageBatchReply

HEADER_OWN: Final = "x-penstock-request-token"
HEADER_SDK: Final = "amz-sdk-invocation-id"
HEADER_ATTEMPT: Final = "amz-sdk-request"
TOKEN_CHARS_MAX: Final = 128
WINDOW_MS: Final = 5 * MINUTE_MS
MESSAGES_MAX: Final = 100_000  # answers, those of a batch counted by its messages; 400 bytes each

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


class Token(msgspec.Struct, frozen=True, gc=False):
    key: int
    is_first: bool  # says the client; there is nothing to look for


class _Kept(msgspec.Struct, frozen=True, gc=False):
    answer: Any
    at_ms: int
    messages: int


def token_of(call: Call) -> Token | None:
    """What the request is recognised by; None: it is not one to remember. For an action that is
    ``REPEATABLE``."""
    request, asked = call.request, call.asked
    headers = request.headers
    token = headers.get(HEADER_OWN)
    is_first = False
    if token is None:
        token = headers.get(HEADER_SDK)
        if token is None or len(token) > TOKEN_CHARS_MAX:
            return None
        is_first = _is_first(headers.get(HEADER_ATTEMPT, ""))
    elif not 1 <= len(token) <= TOKEN_CHARS_MAX:
        raise invalid_value(token, HEADER_OWN, f"Must be 1 to {TOKEN_CHARS_MAX} characters long.")
    action, caller = call.action, call.caller
    assert action is not None, "decode found an action or raised"
    if action.name in _SENDS and isinstance(asked, QueueRequest):
        url = asked.queue_url
        if url is not None and url.endswith(".fifo"):
            return None
    key = hash(
        (
            caller.account,
            caller.user,
            call.region,
            action.name,
            token,
            request.path,
            request.query,
            request.body,
        )
    )
    return Token(key, is_first)


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
        self._kept: dict[int, _Kept] = {}
        self._order: deque[int] = deque()  # keys of what is kept, oldest first
        # The first of each kind, and what the others wait for once there are any.
        self._under_way: dict[int, asyncio.Future[None] | None] = {}
        self.repeated_count = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def once(self, token: Token, context: Context, call: Call) -> Any:
        """Carry the call out, unless that has been done."""
        key = token.key
        if not token.is_first:
            kept = await self._find(key, context)
            if kept is not None:
                self.repeated_count += 1
                return kept.answer
        action = call.action
        assert action is not None, "decode found an action or raised"
        self._under_way.setdefault(key, None)
        try:
            answer = await action.run(context, call, call.asked)
        except BaseException:
            self._ended(key)  # whoever comes again tries again
            raise
        self._keep(key, answer, context.clock.mono_ms())
        self._ended(key)
        return answer

    async def _find(self, key: int, context: Context) -> _Kept | None:
        while key in self._under_way:
            waiters = self._under_way[key]
            if waiters is None:
                waiters = asyncio.get_running_loop().create_future()
                self._under_way[key] = waiters
            await asyncio.shield(waiters)  # others wait for the same
        kept = self._kept.get(key)
        if kept is None or context.clock.mono_ms() - kept.at_ms >= WINDOW_MS:
            return None
        return kept

    def _ended(self, key: int) -> None:
        waiters = self._under_way.pop(key, None)
        if waiters is not None:
            waiters.set_result(None)

    def _keep(self, key: int, answer: Any, now_ms: int) -> None:
        messages = 1
        if isinstance(answer, SendMessageBatchReply):
            messages += len(answer.successful or ()) + len(answer.failed or ())
        before = self._kept.get(key)
        if before is None:
            self._order.append(key)
        else:
            self._messages -= before.messages
        self._kept[key] = _Kept(answer, now_ms, messages)
        self._messages += messages
        if self._messages > self._messages_max or self._is_old(now_ms):
            self._forget_some(now_ms)

    def _is_old(self, now_ms: int) -> bool:
        """The oldest of all."""
        return now_ms - self._kept[self._order[0]].at_ms >= WINDOW_MS

    def _forget_some(self, now_ms: int) -> None:
        """What is too much, and of what is too old a part: nobody pays for all of it."""
        for _ in range(FORGOTTEN_AT_ONCE):
            self._messages -= self._kept.pop(self._order.popleft()).messages
            if self._messages <= self._messages_max and not self._is_old(now_ms):
                break


def _is_first(attempt: str) -> bool:
    """From such as ``attempt=1`` and ``ttl=20260101T000000Z; attempt=2; max=3``. Without a number
    it may be any, so it is looked up."""
    if attempt == "attempt=1":
        return True
    _, _, rest = attempt.partition("attempt=")
    return rest.partition(";")[0].strip() == "1"
