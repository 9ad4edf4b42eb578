"""The last stage: usage of a request, and the tenant it is counted for.

Actions report the number and size of messages to the meter (``sent``, ``received``, ``deleted``).
``Tally`` keeps these numbers until the pipeline counts the request, in the same turn of the event
loop: an action awaits nothing after its report, so no other request comes between.

A successful request counts for the owner of its queue, who pays for what others are allowed to do
there. A rejected one counts for the caller, and under the name of the queue only if the queue
exists, so that invented names create no rows."""

from typing import Final

from penstock.frontend.facts.usage import Counts, Meter, Refusal, UsageTable
from penstock.frontend.sqs.call import Call
from penstock.frontend.sqs.context import Context
from penstock.model.errors import Throttled
from penstock.wire.aws.shapes import QueueRequest

NONE: Final = ""  # no tenant, region, resource or operation
# Codes of callers that are unknown or not allowed.
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
    """A ``Meter`` that adds up the messages of one request and forwards to another meter."""

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
        self.tally = Tally(meter)  # the meter of the actions
        self._table = table

    def answered(self, call: Call, seconds: float) -> None:
        """Count a successful request, which took ``seconds``."""
        tally, table, grant = self.tally, self._table, call.grant
        counts = None
        if grant is not None and grant.counts_minute_ms == table.minute_ms:
            counts = grant.counts
        if counts is None:
            counts = self._find(call)
            if grant is not None:
                grant.counts, grant.counts_minute_ms = counts, table.minute_ms
        counts.add(tally.messages, tally.bytes_in, tally.bytes_out)
        if counts.durations is not None:
            counts.took(seconds)
        tally.messages = tally.bytes_in = tally.bytes_out = 0

    def _find(self, call: Call) -> Counts:
        request, action, table = call.request, call.action, self._table
        assert action is not None, "the request was successful"
        url = request.queue_url if isinstance(request, QueueRequest) else None
        key = (url, action.name, call.account, call.region)
        counts = None if url is None else table.found.get(key)
        if counts is not None:
            return counts
        queue = call.queue()
        if queue is None:
            return table.find((call.account, call.region, NONE, action.permission))
        region = call.region
        if url is not None and call.scope is None:
            region = queue.region or region
        counts = table.find((queue.account or call.account, region, queue.name, action.permission))
        if url is not None and queue.region is None:  # else it depends on the signature
            table.remember((url, action.name, call.account, region), counts)
        return counts

    def rejected(self, context: Context, call: Call, code: str) -> None:
        self.tally.clear()  # the client got no message
        operation = NONE if call.action is None else call.action.permission
        key = (call.account, call.region, _existing(context, call), operation)
        self._table.reject(key, refusal_of(code))


def refusal_of(code: str) -> Refusal:
    if code in THROTTLES:
        return Refusal.THROTTLED
    return Refusal.DENIED if code in DENIALS else Refusal.FAILED


def _existing(context: Context, call: Call) -> str:
    """Return the name of the queue, if it exists and belongs to the caller: neither errors nor
    bills reveal queues of others."""
    queue = call.queue() if call.account else None
    if queue is None or (queue.account or call.account) != call.account:
        return NONE
    try:
        topic = context.catalog.find(call.account, call.region, queue.name)
    except Throttled:  # the catalog of another node may not reply now
        return NONE
    return NONE if topic is None else queue.name
