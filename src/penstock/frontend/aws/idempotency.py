"""A repeated request gets the reply of the first one, or waits for it, so that it is not executed
twice: a client whose connection breaks does not know whether its message was sent, and retries.

AWS SDKs send the header ``amz-sdk-invocation-id``, which is the same for all attempts of a call;
other clients may set ``x-penstock-request-token``. Only actions that must not be done twice are
covered (``REPEATABLE``). FIFO queues and topics have their own deduplication. The first attempt is
completed even if its client has disconnected (``outlives``).

Replies are kept with a checksum of the request, because the same token with other content or from
another caller is a different request. They are stored in pages that expire as a whole. The memory
is bounded, so at full load it covers seconds, not minutes, and it is lost with the process."""

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from penstock.frontend.aws.context import Call
from penstock.model.identity import Caller
from penstock.net.http.exchange import HttpRequest
from penstock.record.crc32c import crc32c
from penstock.wire.aws import query
from penstock.wire.aws.faults import invalid_value

HEADER_OWN: Final = "x-penstock-request-token"
HEADER_SDK: Final = "amz-sdk-invocation-id"
HEADER_ATTEMPT: Final = "amz-sdk-request"
TOKEN_CHARS_MAX: Final = 128
WINDOW_SECONDS: Final = 300.0
MESSAGES_MAX: Final = 50_000  # replies, and messages in replies to batches; 500 bytes each
PAGES: Final = 250
PAGE_SECONDS: Final = 10.0  # longest time for which a page takes replies
EXPIRED_AT_ONCE: Final = 2  # expired pages to remove for each new page

_BATCHES: Final = frozenset(("PublishBatch", "SendMessageBatch"))
# Sends, with the fields that name the queue or topic.
_TARGETS: Final = {
    "SendMessage": ("queue_url",),
    "SendMessageBatch": ("queue_url",),
    "Publish": ("topic_arn", "target_arn"),
    "PublishBatch": ("topic_arn",),
}
REPEATABLE: Final = _TARGETS.keys() | {
    "AddPermission",
    "CancelMessageMoveTask",
    "DeleteQueue",
    "PurgeQueue",
    "RemovePermission",
    "StartMessageMoveTask",
}

# The token of an SDK is unique. Other tokens are combined with account, user and content.
Key = str | tuple[str, str, str, int]
Token = tuple[Key, bool]  # the key, and whether this is the first attempt according to the client


class _Stored(msgspec.Struct, frozen=True, gc=False):
    reply: Any
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
            and self.content == _content_of(call.http)
        )


def token_of(call: Call, action: str) -> Token | None:
    """Return the idempotency token, or None if the request has none or the action needs none."""
    headers = call.http.headers
    token = headers.get(HEADER_SDK)
    own = headers.get(HEADER_OWN)
    if token is None and own is None:
        return None
    request = call.request
    for field in _TARGETS.get(action, ()):
        if (getattr(request, field, None) or "").endswith(".fifo"):
            return None
    if own is not None:
        if not 1 <= len(own) <= TOKEN_CHARS_MAX:
            text = f"Must be 1 to {TOKEN_CHARS_MAX} characters long."
            raise invalid_value(own, HEADER_OWN, text)
        caller = call.caller
        return (caller.account, caller.user, own, _content_of(call.http)), False
    if token is None or len(token) > TOKEN_CHARS_MAX:
        return None
    attempt = headers.get(HEADER_ATTEMPT, "")
    return token, attempt == "attempt=1" or _is_first(attempt)


def outlives(http: HttpRequest) -> bool:
    target = http.headers.get("x-amz-target")
    if target is not None:
        return target.rpartition(".")[2] in REPEATABLE
    return query.action_in(http.query, http.body) in REPEATABLE


class _Page:
    def __init__(self, now_s: float) -> None:
        self.replies: dict[Key, _Stored] = {}
        self.full_s = now_s + PAGE_SECONDS  # takes no replies after this time
        self.last_s = now_s
        self.messages = 0


class Replies:
    def __init__(self, *, messages_max: int = MESSAGES_MAX) -> None:
        self._page_max = max(1, messages_max // PAGES)
        # Without the page that is being filled.
        self._filled_max = messages_max - self._page_max
        self._under_way: dict[Key, asyncio.Future[None] | None] = {}  # a future if others wait
        self._page = _Page(0.0)
        self._filled: deque[_Page] = deque()  # oldest first
        self._filled_messages = 0
        self.repeated_count = 0

    async def once(self, call: Call, token: Token, now_s: float) -> Any:
        """Run the action and store its reply, or return the stored reply of an earlier attempt."""
        action = call.action
        key, is_first = token
        if not is_first:
            stored = await self._find(key)
            if stored is not None and stored.is_for(call, action.name, now_s):
                self.repeated_count += 1
                return stored.reply
            call.topic = None  # it may have changed during the wait
        self._under_way.setdefault(key, None)  # present if two attempts claim to be the first
        try:
            reply = await action.run(call, call.request)
        except BaseException:
            self._end(key)  # a waiting or later attempt runs the action again
            raise
        page, http, name = self._page, call.http, action.name
        content = crc32c(http.body)
        if http.path != "/" or http.query:
            content = _content_of(http)
        page.replies[key] = _Stored(reply, now_s, call.caller, name, call.region, content)
        self._end(key)
        page.messages += 1
        if name in _BATCHES:
            page.messages += len(reply.successful or ()) + len(reply.failed or ())
        if page.messages >= self._page_max or now_s >= page.full_s:
            self._turn_page(now_s)
        return reply

    def _end(self, key: Key) -> None:
        waiting = self._under_way.pop(key, None)
        if waiting is not None:
            waiting.set_result(None)

    async def _find(self, key: Key) -> _Stored | None:
        under_way = self._under_way
        while key in under_way:
            waiting = under_way[key]
            if waiting is None:
                waiting = under_way[key] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waiting)  # others wait for the same future
        pages = (self._page, *reversed(self._filled))
        return next((page.replies[key] for page in pages if key in page.replies), None)

    def _turn_page(self, now_s: float) -> None:
        page, filled = self._page, self._filled
        page.last_s = now_s
        filled.append(page)
        self._filled_messages += page.messages
        self._page = _Page(now_s)
        expired = 0
        while filled and (
            self._filled_messages > self._filled_max
            or (expired < EXPIRED_AT_ONCE and now_s - filled[0].last_s >= WINDOW_SECONDS)
        ):
            expired += 1
            self._filled_messages -= filled.popleft().messages


def _content_of(http: HttpRequest) -> int:
    content = crc32c(http.body)
    if http.path == "/" and not http.query:
        return content
    return crc32c(f"{http.path}?{http.query}".encode(), content)


def _is_first(attempt: str) -> bool:
    """Return whether the header, for example ``attempt=1; max=3``, has the attempt number 1."""
    _, _, rest = attempt.partition("attempt=")
    return rest.partition(";")[0].strip() == "1"
