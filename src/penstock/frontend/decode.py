"""First stage: from an HTTP request to the action asked for and its typed request.

Which service and style is decided in this order: the X-Amz-Target header, the service named in the
signature, the Action parameter. A request about a queue may be sent to the queue's own path and
leave out its URL, in either style. Signatures are only read here; see authenticate.py."""

from urllib.parse import unquote

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.frontend.protocols import JSON, STS_JSON, STS_QUERY
from penstock.frontend.sqs.actions import ACTIONS
from penstock.frontend.sts import get_caller_identity
from penstock.net.exchange import HttpRequest
from penstock.wire.aws import json10, query, sigv4, sts
from penstock.wire.aws.faults import Fault, fault
from penstock.wire.aws.shapes import QueueRequest


def decode(context: Context, call: Call) -> None:  # noqa: ARG001 - every stage has both
    if call.codec is JSON:
        _decode_json(call)
    else:
        _decode_query(call)
    asked = call.asked
    if isinstance(asked, QueueRequest) and asked.queue_url is None and call.request.path != "/":
        asked.queue_url = unquote(call.request.path)


def has_action(request: HttpRequest) -> bool:
    """Whether a request asks for any action at all. Browsers and probes do not."""
    if "x-amz-target" in request.headers or request.body:
        return True
    return "Action=" in request.query


def _decode_json(call: Call) -> None:
    request = call.request
    headers = request.headers
    target = headers.get("x-amz-target", "")
    _read_scope(call, query.fields_of(request.query) if request.query else {})
    if target == sts.TARGET:
        call.codec = STS_JSON
        call.action = get_caller_identity.ACTION
        return
    operation = json10.operation_of(target)
    call.action = ACTIONS[operation.name]
    call.asked = json10.decode(operation, request.body)


def _decode_query(call: Call) -> None:
    request = call.request
    fields = query.fields_of(request.query, request.body)
    _read_scope(call, fields)
    service = "" if call.scope is None else call.scope.service
    if service == "sts" or (service != "sqs" and fields.get("Action") == sts.ACTION):
        call.codec = STS_QUERY
        if fields.get("Action") != sts.ACTION:
            raise fault("InvalidAction", f"The only action of STS served here is {sts.ACTION}.")
        call.action = get_caller_identity.ACTION
        return
    operation = query.operation_of(fields)
    call.action = ACTIONS[operation.name]
    call.asked = query.decode(operation, fields)


def _read_scope(call: Call, fields: dict[str, str]) -> None:
    try:
        call.scope = sigv4.parse(call.request.headers.get("authorization"), fields)
    except Fault as refusal:
        call.scope_fault = refusal  # whether it matters is for authenticate to say
