"""One request on its way through the stages, each of which adds its results."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock.frontend.limits.leaky_bucket import LeakyBucket
from penstock.frontend.sqs.grants import Grant
from penstock.model.identity import Caller
from penstock.model.names import is_account
from penstock.model.topic import Topic
from penstock.net.http.exchange import HttpRequest
from penstock.wire.aws import queue_urls
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.queue_urls import QueueAddress
from penstock.wire.aws.shapes import QueueRequest, Request
from penstock.wire.aws.sigv4 import CredentialScope

if TYPE_CHECKING:
    from penstock.frontend.sqs.context import Context
    from penstock.frontend.sqs.protocols import Codec

UNKNOWN_CALLER = Caller("", "")  # has no rights


class Action:
    """One operation of a service. ``run`` takes the typed request of the operation and returns its
    typed reply."""

    __slots__ = ("name", "permission", "run")

    def __init__(
        self,
        name: str,
        run: Callable[[Context, Call, Any], Coroutine[Any, Any, Any]],
        *,
        service: str = "sqs",
    ) -> None:
        self.name = name
        self.run = run
        # As policies, limits and usage name the action: a batch counts as its single form.
        self.permission = f"{service}:{name.removesuffix('Batch')}"


class Call:
    __slots__ = (
        "account",
        "action",
        "arn",
        "body_hash",
        "bytes_bucket",
        "caller",
        "charged_at_ms",
        "codec",
        "grant",
        "http",
        "origin_arns",
        "permission",
        "region",
        "request",
        "scope",
        "scope_fault",
        "sender",
        "topic",
    )

    def __init__(self, http: HttpRequest, codec: Codec) -> None:
        self.http = http
        self.codec = codec  # encodes the reply; known before anything can fail
        # identify: the unverified signature
        self.scope: CredentialScope | None = None
        self.scope_fault: Fault | None = None  # why the signature cannot be parsed
        self.body_hash = ""  # SHA-256 of a large body, which is hashed in pieces
        # decode; identify sets the action if a header names it
        self.action: Action | None = None
        self.request: Request | None = None
        # authenticate: the caller, the namespace of queue names, and the SenderId of messages
        self.caller = UNKNOWN_CALLER
        self.account = ""
        self.region = ""
        self.sender = ""
        # authorize: action and queue as policies and limits name them. Empty for a trusted caller;
        # ``arn`` also for an action that is not about one queue.
        self.permission = ""
        self.arn = ""
        self.grant: Grant | None = None  # authorized from the cache
        self.origin_arns: tuple[str, ...] = ()  # StartMessageMoveTask: queues it may send to
        self.topic: Topic | None = None  # the queue, if found without an await since
        # throttle: where the bytes of messages are charged once their size is known
        self.bytes_bucket: LeakyBucket | None = None
        self.charged_at_ms = 0  # when the request came or, if it waited, when its wait ended

    def queue(self) -> QueueAddress | None:
        """Return the queue that the request names by URL, name or ARN; None if there is none, or
        the URL is invalid. The queue may not exist."""
        request = self.request
        if isinstance(request, QueueRequest):
            try:
                return queue_urls.parse(request.queue_url or "")
            except Fault:
                return None
        name = getattr(request, "queue_name", None) or getattr(request, "source_arn", None)
        if not name:
            return None
        owner = getattr(request, "queue_owner_aws_account_id", None)
        account = owner if owner and is_account(owner) else None
        return queue_urls.parse_arn(name) or QueueAddress(account, None, name)
