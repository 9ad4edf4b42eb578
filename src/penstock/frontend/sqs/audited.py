"""Audit entries of SQS requests: changes of queues, and denied requests. Messages, receipts and
secrets are never recorded; of tags only the keys are."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.frontend.facts.audit import make_entry
from penstock.frontend.sqs.actions.move_tasks import decode_handle
from penstock.frontend.sqs.call import Call
from penstock.frontend.sqs.context import Context
from penstock.frontend.sqs.metering import DENIALS
from penstock.model.names import queue_arn
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import QueueRequest
from penstock.wire.facts.audit import AuditEntry


def _attributes(request: Any) -> Mapping[str, object]:
    params: dict[str, object] = {"attributes": request.attributes or {}}
    if getattr(request, "tags", None):
        params["tags"] = sorted(request.tags)
    return params


# By action: the recorded parameters, besides the queue.
_PARAMS: Final[Mapping[str, Callable[[Any], Mapping[str, object]]]] = {
    "AddPermission": lambda request: {
        "label": request.label,
        "accounts": request.aws_account_ids,
        "actions": request.actions,
    },
    "CancelMessageMoveTask": lambda _: {},
    "CreateQueue": _attributes,
    "DeleteQueue": lambda _: {},
    "PurgeQueue": lambda _: {},
    "RemovePermission": lambda request: {"label": request.label},
    "SetQueueAttributes": _attributes,
    "StartMessageMoveTask": lambda request: {
        "destination": request.destination_arn,
        "rate": request.max_number_of_messages_per_second,
    },
    "TagQueue": lambda request: {"tags": sorted(request.tags or {})},
    "UntagQueue": lambda request: {"tags": sorted(request.tag_keys or ())},
}
AUDITED: Final = frozenset(_PARAMS)


def entry_of(context: Context, call: Call, code: str) -> AuditEntry:
    """Return the entry of an audited request. ``code`` is that of the error; empty: success."""
    assert call.action is not None, "decode found it"
    return _entry(context, call, code, _PARAMS[call.action.name](call.request))


def denial_of(context: Context, call: Call, code: str) -> AuditEntry:
    """Return the entry of a denied request; of an unknown caller, with the claimed access key."""
    scope = call.scope
    claimed = {} if call.account or scope is None else {"access_key": scope.access_key}
    return _entry(context, call, code, claimed)


def _entry(context: Context, call: Call, code: str, params: Mapping[str, object]) -> AuditEntry:
    http, action = call.http, call.action
    return make_entry(
        "" if action is None else action.permission,
        at_ms=context.clock.wall_ms(),
        caller=call.caller,
        source_ip=http.peer,
        resource=_resource(call),
        code=code,
        denials=DENIALS,
        request_id=http.request_id,
        params=params,
    )


def _resource(call: Call) -> str:
    """Return the ARN of the queue; empty if unknown."""
    if call.arn:
        return call.arn
    request = call.request
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
