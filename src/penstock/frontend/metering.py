"""Last stage: what a request counts as, and for whom.

An action tells the meter how many messages of which size it moved (``sent``, ``received``,
``deleted``); whose they were it need not know. ``Tally`` passes that on and keeps it until the
pipeline counts the request, in the same turn of the loop: between an action's word to the meter and
its end nothing is awaited, so no other request comes in between.

A request that was carried out counts for the owner of its queue, who pays for what others are
allowed to do there. One that was refused counts for whoever asked, and under the queue's name only
if there is such a queue: nobody makes rows by inventing names.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.frontend.call import Call
from penstock.frontend.context import Context, Meter
from penstock.frontend.sqs.actions import ACTIONS
from penstock.frontend.sts import get_caller_identity
from penstock.frontend.usage import Counts, Refusal, UsageTable
from penstock.model.errors import Throttled
from penstock.model.names import is_account
from penstock.wire.aws import queue_urls
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import QueueRequest

NONE: Final = ""  # in place of a tenant, a region, a resource or an operation
OPERATIONS: Final[Mapping[str, str]] = {
    **{name: f"sqs:{name.removesuffix('Batch')}" for name in ACTIONS},
    get_caller_identity.ACTION.name: "sts:GetCallerIdentity",
}
# Who asks was not believed, or may not.
DENIALS: Final = frozenset(
    (
        "AccessDenied",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "MissingAuthenticationToken",
        "RequestExpired",
        "SignatureDoesNotMatch",
    )
)
THROTTLES: Final = frozenset(("RequestThrottled", "ThrottlingException"))


class Tally:
    """Implements ``context.Meter`` over another one."""

    __slots__ = ("_meter", "bytes_in", "bytes_out", "messages", "request")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.request = meter.request
        self.clear()

    def clear(self) -> None:
        self.messages = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def sent(self, count: int, size_bytes: int) -> None:
        self.messages += count
        self.bytes_in += size_bytes
        self._meter.sent(count, size_bytes)

    def received(self, count: int, size_bytes: int) -> None:
        self.messages += count
        self.bytes_out += size_bytes
        self._meter.received(count, size_bytes)

    def deleted(self, count: int) -> None:
        self.messages += count
        self._meter.deleted(count)


class Metering:
    def __init__(self, table: UsageTable, meter: Meter) -> None:
        self.tally = Tally(meter)  # what actions are given as their meter
        self._table = table

    def answered(self, call: Call, seconds: float) -> None:
        """As it was asked to, so long after it was read."""
        tally, table, kept = self.tally, self._table, call.kept
        if kept is not None and kept.counts is not None and kept.counted_ms == table.minute_ms:
            counts = kept.counts
        else:
            counts = self._look_up(call)
            if kept is not None:
                kept.counts, kept.counted_ms = counts, table.minute_ms
        counts.add(tally.messages, tally.bytes_in, tally.bytes_out)
        if counts.durations is not None:
            counts.took(seconds)
        tally.messages = tally.bytes_in = tally.bytes_out = 0

    def _look_up(self, call: Call) -> Counts:
        asked, action = call.asked, call.action
        assert action is not None, "nothing else is carried out"
        if isinstance(asked, QueueRequest):
            place = (asked.queue_url, action.name, call.account, call.region)
            counts = self._table.found.get(place)
            if counts is not None:
                return counts
        return self._find(call, action.name)

    def _find(self, call: Call, action: str) -> Counts:
        """By account, region and name, and by the URL from then on: it is there at once."""
        asked, table = call.asked, self._table
        account, region, operation = call.account, call.region, OPERATIONS[action]
        if not isinstance(asked, QueueRequest):
            owner, name = (account, NONE) if asked is None else _named(asked, account)
            return table.find((owner, region, name, operation))
        assert asked.queue_url is not None, "the action has found its queue"
        address = queue_urls.parse(asked.queue_url)
        if call.scope is None:
            region = address.region or region
        counts = table.find((address.account or account, region, address.name, operation))
        if address.region is None:  # else it depends on the signature whether that counts
            table.remember((asked.queue_url, action, account, region), counts)
        return counts

    def refused(self, context: Context, call: Call, code: str) -> None:
        self.tally.clear()  # what it may have moved, nobody was given
        action = call.action
        operation = NONE if action is None else OPERATIONS[action.name]
        key = (call.account, call.region, _existing(context, call), operation)
        self._table.refuse(key, refusal_of(code))


def refusal_of(code: str) -> Refusal:
    if code in THROTTLES:
        return Refusal.THROTTLED
    return Refusal.DENIED if code in DENIALS else Refusal.FAILED


def name_in(asked: Any) -> str | None:
    """What a request that is not about a queue's URL calls a queue, or its ARN."""
    return getattr(asked, "queue_name", None) or getattr(asked, "source_arn", None)


def _named(asked: Any, account: str) -> tuple[str, str]:
    """Owner and name of the queue that such a request is about."""
    named = name_in(asked)
    if named is None:
        return account, NONE
    address = queue_urls.parse_arn(named)
    if address is not None:
        return address.account or account, address.name
    owner = getattr(asked, "queue_owner_aws_account_id", None)
    return (owner if owner and is_account(owner) else account), named


def _existing(context: Context, call: Call) -> str:
    asked = call.asked
    if asked is None or not call.account:
        return NONE
    account, name = call.account, NONE
    if isinstance(asked, QueueRequest):
        try:
            address = queue_urls.parse(asked.queue_url or "")
        except Fault:
            return NONE
        account, name = address.account or account, address.name
    else:
        account, name = _named(asked, account)
    # Of others one learns nothing: not from the answer, and not from the bill.
    if account != call.account:
        return NONE
    try:
        topic = context.catalog.find(account, call.region, name)
    except Throttled:  # where the catalog is elsewhere, it may not know just now
        return NONE
    return NONE if topic is None else name
