"""Brokers of tests: a call is served by the method that has its name."""

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.model.calls import BrokerCall, R
from penstock.model.ports import MoveTask
from penstock.model.topic import Topic


def name_of(kind: type[BrokerCall[Any]]) -> str:
    """``IsInTransaction`` → ``is_in_transaction``"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


class Served:
    """A ``BrokerPort`` without shares, move tasks and listeners."""

    def call(self, call: BrokerCall[R]) -> Coroutine[Any, Any, R]:
        method: Callable[[BrokerCall[R]], Coroutine[Any, Any, R]]
        method = getattr(self, name_of(type(call)))
        return method(call)

    def moves(self, source_arn: str) -> Sequence[MoveTask]:
        return ()

    def find_share(self, source: Topic, group: str) -> Topic | None:
        return None

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        raise AssertionError("this broker has no listeners")

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        raise AssertionError("there are no shares")
