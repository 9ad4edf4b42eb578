"""Which requests the audit trail is about, and what it says of them: control-plane actions on
queues, and whoever was not let in. Messages, receipts and secrets never get here; of tags only the
names do.

Kafka's requests have their own list, ``kafka/audited.py``."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.frontend.metering import DENIALS, OPERATIONS, name_in
from penstock.frontend.sqs.move_tasks import open_handle
from penstock.model.names import queue_arn
from penstock.wire.aws import queue_urls
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import QueueRequest
from penstock.wire.facts.audit import (
    DENIED,
    FAILED,
    NAME_MAX,
    OK,
    UNKNOWN,
    AuditEntry,
    redacted,
)

CANCELLED: Final = "ClientGone"


def _attributes(asked: Any) -> Mapping[str, object]:
    params: dict[str, object] = {"attributes": asked.attributes or {}}
    if getattr(asked, "tags", None):
        params["tags"] = sorted(asked.tags)
    return params


# By action; what else it says than the queue it is about.
_PARAMS: Final[Mapping[str, Callable[[Any], Mapping[str, object]]]] = {
    "AddPermission": lambda asked: {
        "label": asked.label,
        "accounts": asked.aws_account_ids,
        "actions": asked.actions,
    },
    "CancelMessageMoveTask": lambda _asked: {},
    "CreateQueue": _attributes,
    "DeleteQueue": lambda _asked: {},
    "PurgeQueue": lambda _asked: {},
    "RemovePermission": lambda asked: {"label": asked.label},
    "SetQueueAttributes": _attributes,
    "StartMessageMoveTask": lambda asked: {
        "destination": asked.destination_arn,
        "rate": asked.max_number_of_messages_per_second,
    },
    "TagQueue": lambda asked: {"tags": sorted(asked.tags or {})},
    "UntagQueue": lambda asked: {"tags": sorted(asked.tag_keys or ())},
}
AUDITED: Final = frozenset(_PARAMS)


def entry_of(context: Context, call: Call, code: str, *, is_ok: bool) -> AuditEntry:
    """A request that was admitted to the trail, and how it ended."""
    action = call.action
    assert action is not None, "decode found it"
    params = _PARAMS[action.name](call.asked)
    return _entry(context, call, outcome_of(code, is_ok=is_ok), "" if is_ok else code, params)


def denial_of(context: Context, call: Call, code: str) -> AuditEntry:
    """Somebody who was not let in. Which key was claimed is no secret, and all that is known."""
    scope = call.scope
    claimed = {} if call.account or scope is None else {"access_key": scope.access_key}
    return _entry(context, call, DENIED, code, claimed)


def outcome_of(code: str, *, is_ok: bool) -> str:
    if is_ok:
        return OK
    if code == CANCELLED:
        return UNKNOWN
    return DENIED if code in DENIALS else FAILED


def _entry(
    context: Context, call: Call, outcome: str, code: str, params: Mapping[str, object]
) -> AuditEntry:
    request, action = call.request, call.action
    return AuditEntry(
        at_ms=context.clock.wall_ms(),
        principal=call.caller.arn if call.account else "",
        tenant=call.account,
        source_ip=request.peer,
        action="" if action is None else OPERATIONS[action.name],
        resource=_resource(call)[:NAME_MAX],
        outcome=outcome,
        error_code=code,
        request_id=request.request_id,
        params=redacted(params),
    )


def _resource(call: Call) -> str:
    """The ARN of the queue that was meant, as far as that can be told."""
    if call.arn:
        return call.arn
    asked = call.asked
    try:
        if isinstance(asked, QueueRequest):
            address = queue_urls.parse(asked.queue_url or "")
            region = call.region if call.scope is not None else address.region or call.region
            return queue_arn(address.account or call.account, region, address.name)
        handle = getattr(asked, "task_handle", None)
        named = open_handle(handle)[1] if handle else name_in(asked) or ""
    except Fault:
        return ""
    if not named or queue_urls.parse_arn(named) is not None:
        return named
    return queue_arn(call.account, call.region, named)
