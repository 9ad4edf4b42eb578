"""One request on its way through the stages: what each of them found out, for the next to use.

A plain slotted object, filled in from left to right: decode sets what is asked, authenticate sets
who asks, and an action reads both."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.net.exchange import HttpRequest
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import Request
from penstock.wire.aws.sigv4 import CredentialScope

if TYPE_CHECKING:
    from penstock.frontend.context import Context
    from penstock.frontend.protocols import Codec


class Action(msgspec.Struct, frozen=True):
    """One operation of one service. ``run`` gets the operation's own request and returns its
    own reply, which is why both are open here and exact in each action's file."""

    name: str
    run: Callable[[Context, Call, Any], Coroutine[Any, Any, Any]]


class Call:
    __slots__ = (
        "account",
        "action",
        "asked",
        "codec",
        "region",
        "request",
        "scope",
        "scope_fault",
        "sender",
    )

    def __init__(self, request: HttpRequest, codec: Codec) -> None:
        self.request = request
        self.codec = codec  # how to answer, known before anything else can go wrong
        # decode: what is asked, and who claims to ask (not yet believed)
        self.action: Action | None = None
        self.asked: Request | None = None
        self.scope: CredentialScope | None = None
        self.scope_fault: Fault | None = None  # why the signature cannot be read
        # authenticate: in which namespace of names, and what messages show as SenderId
        self.account = ""
        self.region = ""
        self.sender = ""
