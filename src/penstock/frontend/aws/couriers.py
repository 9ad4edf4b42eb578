"""The port to the couriers, which carry messages to phones, mobile apps, mailboxes, functions and
streams. ``push/couriers.py`` implements it."""

from collections.abc import Mapping
from typing import Protocol

from penstock.flow.verdicts import Failure
from penstock.model.sent_message import SentMessage


class Couriers(Protocol):
    @property
    def relayed(self) -> Mapping[str, bool]:
        """Return the protocols for which there is a gateway, a mail server or the outbox, and
        whether their endpoints must confirm subscriptions."""

    def has_endpoint(self, arn: str) -> bool:
        """Return whether a platform endpoint exists."""

    async def deliver(self, protocol: str, account: str, message: SentMessage) -> int | Failure:
        """Send a message of a tenant to an endpoint that it names. Returns an HTTP status, or why
        there is none. Raises Throttled if too many messages of the tenant are under way."""
