"""One request on its way through the stages: what each of them found out, for the next to use.

A plain slotted object, filled in from left to right: identify reads the signature, authenticate
sets who asks, decode what is asked, authorize under which names policies know it, and an action
reads all of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.frontend.leaky_bucket import LeakyBucket
from penstock.frontend.passes import Pass
from penstock.model.identity import Caller
from penstock.model.topic import Topic
from penstock.net.exchange import HttpRequest
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import Request
from penstock.wire.aws.sigv4 import CredentialScope

if TYPE_CHECKING:
    from penstock.frontend.context import Context
    from penstock.frontend.protocols import Codec

UNKNOWN_CALLER = Caller("", "")  # has no rights and is not believed


class Action(msgspec.Struct, frozen=True):
    """One operation of one service. ``run`` gets the operation's own request and returns its
    own reply, which is why both are open here and exact in each action's file."""

    name: str
    run: Callable[[Context, Call, Any], Coroutine[Any, Any, Any]]


class Call:
    __slots__ = (
        "account",
        "action",
        "arn",
        "asked",
        "body_hash",
        "caller",
        "codec",
        "kept",
        "origin_arns",
        "owed",
        "owed_from_ms",
        "permission",
        "region",
        "request",
        "scope",
        "scope_fault",
        "sender",
        "topic",
    )

    def __init__(self, request: HttpRequest, codec: Codec) -> None:
        self.request = request
        self.codec = codec  # how to answer, known before anything else can go wrong
        # identify: who claims to ask (not yet believed)
        self.scope: CredentialScope | None = None
        self.scope_fault: Fault | None = None  # why the signature cannot be read
        self.body_hash = ""  # SHA-256 of a large body, which is hashed in pieces
        # decode: what is asked; identify knows the action already if a header names it
        self.action: Action | None = None
        self.asked: Request | None = None
        # authenticate: who asks, in which namespace of names, and what messages show as SenderId
        self.caller = UNKNOWN_CALLER
        self.account = ""
        self.region = ""
        self.sender = ""
        # authorize: what is asked and of which queue, as policies and limits name it. Both stay
        # empty for a caller who is believed; the resource also for an action on no queue.
        self.permission = ""
        self.arn = ""
        self.kept: Pass | None = None  # all of it has been weighed before
        self.origin_arns: tuple[str, ...] = ()  # StartMessageMoveTask: queues it may send to
        self.topic: Topic | None = None  # the queue, if it was found on the way, in this turn
        # throttle: what the messages' bytes count against, once it is known how many they are.
        self.owed: LeakyBucket | None = None
        self.owed_from_ms = 0  # from when on: when it came or, of one that waits, got its answer
