"""Rate limits, usage and audit entries of SQS and SNS requests.

``throttle`` runs after authorization, so that a denied request does not use up the limit of a
queue. An account without a tenant has no limits. A successful request counts for the owner of its
queue or topic, even if another tenant sent it. A rejected request counts for the caller, and under
the name of the queue only if the queue exists, so that invented names create no rows. Changes of
queues, topics and subscriptions and denied requests are audited, without messages, receipts and
secrets."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.frontend.aws.context import Call
from penstock.frontend.aws.sns.rules import facts as sns_facts
from penstock.frontend.aws.sqs.actions.move_tasks import decode_handle
from penstock.frontend.facts.audit import make_entry
from penstock.frontend.facts.usage import Counts, Meter, Refusal, UsageTable
from penstock.model.errors import Throttled
from penstock.model.identity import Tenant
from penstock.model.names import queue_arn
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import QueueRequest
from penstock.wire.aws.sns.shapes import SnsRequest
from penstock.wire.facts.audit import AuditEntry

NONE: Final = ""  # no tenant, region, resource or operation
# Error codes for callers that are unknown or have no permission.
DENIALS: Final = (
    "AccessDenied",
    "AuthorizationError",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "MissingAuthenticationToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
)
THROTTLES: Final = ("RequestThrottled", "Throttled", "ThrottlingException")


def throttle(call: Call) -> None:
    grant = call.grant
    tenant = call.context.identities.tenant(call.caller.account) if grant is None else grant.tenant
    if tenant is None:
        return
    connection, quotas = call.http.connection, call.context.quotas
    if connection is not None and connection.counted_for is not tenant and quotas is not None:
        quotas.claim(connection, tenant)
    throttler, clock = call.context.throttler, call.context.clock
    if grant is None:
        if throttler.is_unlimited(tenant):
            return
        now_ms = clock.mono_ms()
        call.bytes_bucket = throttler.check(
            tenant, call.caller, call.action.permission, _arn(call, tenant), now_ms=now_ms
        )
    else:
        limits = grant.limits
        if limits is None or not throttler.is_current(limits):
            limits = grant.limits = throttler.limits_of(
                tenant, call.caller, call.permission, grant.arn, now_ms=clock.mono_ms()
            )
        if limits.is_empty:
            return
        now_ms = clock.mono_ms()
        call.bytes_bucket = throttler.take(limits, now_ms=now_ms)
    call.charged_at_ms = now_ms


def _arn(call: Call, tenant: Tenant) -> str | None:
    if call.arn or not tenant.limits.queue_requests.per_s > 0:
        return call.arn or None
    # ``authorize`` sets no ARN for a trusted caller.
    if isinstance(call.request, SnsRequest):
        topic = sns_facts.topic_arn(call)
        return None if topic is None else str(topic)
    queue = call.queue() if isinstance(call.request, QueueRequest) else None
    if queue is None:
        return None
    return queue_arn(queue.account or call.account, call.region, queue.name)


class Metering:
    """A ``Meter`` that also adds up the messages and bytes of one request for the usage table.
    Counts of two requests do not mix: an action awaits nothing after it reports its messages."""

    __slots__ = ("_meter", "_table", "bytes_in", "bytes_out", "messages", "request")

    def __init__(self, meter: Meter, table: UsageTable | None) -> None:
        self._meter = meter
        self._table = table
        self.request = meter.request
        self.clear()

    def clear(self) -> None:
        self.messages = self.bytes_in = self.bytes_out = 0

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

    def answered(self, call: Call, seconds: float) -> None:
        table, grant = self._table, call.grant
        if table is None:
            self.clear()
            return
        counts = None
        if grant is not None and grant.counts_minute_ms == table.minute_ms:
            counts = grant.counts
        if counts is None:
            counts = self._find(table, call)
            if grant is not None:
                grant.counts, grant.counts_minute_ms = counts, table.minute_ms
        counts.add(self.messages, self.bytes_in, self.bytes_out)
        if counts.durations is not None:
            counts.took(seconds)
        self.messages = self.bytes_in = self.bytes_out = 0

    def _find(self, table: UsageTable, call: Call) -> Counts:
        request, action = call.request, call.action
        url = None
        if isinstance(request, QueueRequest):
            url = request.queue_url
        elif isinstance(request, SnsRequest):
            url = sns_facts.given_arn(request)
        key = (url, action.name, call.account, call.region)
        counts = None if url is None else table.found.get(key)
        if counts is not None:
            return counts
        if isinstance(request, SnsRequest):
            topic = sns_facts.topic_of(call)
            if topic is None:  # such as one that was deleted
                return table.find((call.account, call.region, NONE, action.permission))
            counts = table.find((topic.account, topic.region, topic.name, action.permission))
            if url is not None:
                table.remember(key, counts)
            return counts
        queue = call.queue()
        if queue is None:
            return table.find((call.account, call.region, NONE, action.permission))
        region = call.region
        if url is not None and call.scope is None:
            region = queue.region or region
        counts = table.find((queue.account or call.account, region, queue.name, action.permission))
        if url is not None and queue.region is None:  # else the key depends on the signature
            table.remember((url, action.name, call.account, region), counts)
        return counts

    def rejected(self, call: Call, code: str) -> None:
        self.clear()  # the client got no message
        if self._table is not None:
            resource, operation = _existing(call), call.action.permission
            key = (call.account, call.region, resource, operation)
            self._table.reject(key, refusal_of(code))


def refusal_of(code: str) -> Refusal:
    if code in THROTTLES:
        return Refusal.THROTTLED
    return Refusal.DENIED if code in DENIALS else Refusal.FAILED


def _existing(call: Call) -> str:
    if isinstance(call.request, SnsRequest):
        found = sns_facts.topic_of(call) if call.account else None
        is_own = found is not None and (found.account, found.region) == (call.account, call.region)
        return found.name if found is not None and is_own else NONE
    queue = call.queue() if call.account else None
    if queue is None or (queue.account or call.account) != call.account:
        return NONE
    try:
        topic = call.context.catalog.find(call.account, call.region, queue.name)
    except Throttled:  # the catalog of another node may not reply now
        return NONE
    return NONE if topic is None else queue.name


def _attributes(request: Any) -> Mapping[str, object]:
    params: dict[str, object] = {"attributes": request.attributes or {}}
    if getattr(request, "tags", None):
        params["tags"] = sorted(request.tags)
    return params


# The parameters to record of each audited action, besides the queue or topic.
_PARAMS: Final[Mapping[str, Callable[[Any], Mapping[str, object]]]] = {
    **sns_facts.PARAMS,
    "sqs:AddPermission": lambda request: {
        "label": request.label,
        "accounts": request.aws_account_ids,
        "actions": request.actions,
    },
    "sqs:CancelMessageMoveTask": lambda _: {},
    "sqs:CreateQueue": _attributes,
    "sqs:DeleteQueue": lambda _: {},
    "sqs:PurgeQueue": lambda _: {},
    "sqs:RemovePermission": lambda request: {"label": request.label},
    "sqs:SetQueueAttributes": _attributes,
    "sqs:StartMessageMoveTask": lambda request: {
        "destination": request.destination_arn,
        "rate": request.max_number_of_messages_per_second,
    },
    "sqs:TagQueue": lambda request: {"tags": sorted(request.tags or {})},
    "sqs:UntagQueue": lambda request: {"tags": sorted(request.tag_keys or ())},
}
AUDITED: Final = frozenset(_PARAMS)


def entry_of(call: Call, code: str, *, is_denial: bool = False) -> AuditEntry:
    http, action, scope = call.http, call.action, call.scope
    params: Mapping[str, object] = {}
    if not is_denial:
        params = _PARAMS[action.permission](call.request)
    elif not call.account and scope is not None:
        params = {"access_key": scope.access_key}
    return make_entry(
        action.permission,
        at_ms=call.context.clock.wall_ms(),
        caller=call.caller,
        source_ip=http.peer,
        resource=_resource(call),
        code=code,
        denials=DENIALS,
        request_id=http.request_id,
        params=params,
    )


def _resource(call: Call) -> str:
    if call.arn:
        return call.arn
    request = call.request
    if isinstance(request, SnsRequest):
        topic = sns_facts.topic_arn(call)
        return "" if topic is None else str(topic)
    handle = getattr(request, "task_handle", None)
    if handle:
        try:
            return decode_handle(handle)[1]
        except Fault:
            return ""
    queue = call.queue()
    if queue is None:
        return ""
    is_signed_url = isinstance(request, QueueRequest) and call.scope is not None
    region = call.region if is_signed_url else queue.region or call.region
    return queue_arn(queue.account or call.account, region, queue.name)
