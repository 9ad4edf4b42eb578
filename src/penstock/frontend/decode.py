"""The first stage, and the third: who claims to ask, and what is asked.

``identify`` reads the head of a request only: the signature, and the action if a header names it.
``decode`` reads the body, after the signature was verified (authenticate.py): a request that is not
signed never has its body decoded while authentication is on.

Which service and style is decided in this order: the X-Amz-Target header, the service named in the
signature, the Action parameter. A request about a queue may be sent to the queue's own path and
leave out its URL, in either style."""

from collections.abc import Generator
from urllib.parse import unquote

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.frontend.protocols import JSON, STS_JSON, STS_QUERY
from penstock.frontend.sqs.actions import ACTIONS
from penstock.frontend.sts import get_caller_identity
from penstock.net.exchange import HttpRequest
from penstock.wire.aws import json10, query, queue_urls, sigv4, sts
from penstock.wire.aws.faults import Fault, fault
from penstock.wire.aws.shapes import OPERATIONS, QueueRequest

# About all queues, so refused in a form sent to the address of one.
_NOT_AT_A_QUEUE = frozenset(("CreateQueue", "ListQueues"))

_TARGETS = {json10.TARGET_PREFIX + name: action for name, action in ACTIONS.items()}

SCOPES_MAX = 1_000  # callers remembered; each is a few hundred bytes
TOKEN_BYTES = 16


def identify(context: Context, call: Call) -> None:
    request = call.request
    _read_scope(context, call, query.fields_of(request.query) if request.query else {})
    if call.codec is not JSON:
        if call.scope is not None and call.scope.service == "sts":
            call.codec = STS_QUERY
        return
    target = request.headers.get("x-amz-target", "")
    call.action = _TARGETS.get(target)
    if call.action is None:
        if target != sts.TARGET:
            raise json10.unknown_operation(target)
        call.codec = STS_JSON
        call.action = get_caller_identity.ACTION


def decode(_context: Context, call: Call) -> None:
    request = call.request
    if call.codec is JSON:
        assert call.action is not None, "identify found one or raised"
        call.asked = json10.decode(OPERATIONS[call.action.name], request.body)
    elif call.codec is not STS_JSON:
        _read_form(call, query.fields_of(request.query, request.body))
    if request.path != "/":
        _fill_url(call)


def decode_in_steps(context: Context, call: Call) -> Generator[None, None, None]:
    """``decode`` for a large body, with a pause after every few milliseconds of work."""
    request = call.request
    if call.codec is JSON:
        assert call.action is not None, "identify found one or raised"
        operation = OPERATIONS[call.action.name]
        token = context.entropy(TOKEN_BYTES).hex()
        call.asked = yield from json10.decode_in_steps(operation, request.body, token)
    elif call.codec is not STS_JSON:
        fields = yield from query.fields_in_steps(request.query, request.body)
        _read_form(call, fields)
    if request.path != "/":
        _fill_url(call)


def name_action(call: Call) -> None:
    """For the audit trail and the metrics: the action of a request that was rejected before its
    body was decoded."""
    request = call.request
    call.action = ACTIONS.get(query.action_in(request.query, request.body))


def _fill_url(call: Call) -> None:
    asked = call.asked
    if isinstance(asked, QueueRequest) and asked.queue_url is None:
        asked.queue_url = unquote(call.request.path)


def has_action(request: HttpRequest) -> bool:
    """Whether a request asks for any action at all. Browsers and probes do not."""
    if "x-amz-target" in request.headers or request.method not in ("GET", "HEAD"):
        return True
    return "Action=" in request.query


def _read_form(call: Call, fields: dict[str, str]) -> None:
    service = "" if call.scope is None else call.scope.service
    if service == "sts" or (service != "sqs" and fields.get("Action") == sts.ACTION):
        call.codec = STS_QUERY
        if fields.get("Action") != sts.ACTION:
            raise fault("InvalidAction", f"The only action of STS served here is {sts.ACTION}.")
        call.action = get_caller_identity.ACTION
        return
    operation = query.operation_of(fields)
    if operation.name in _NOT_AT_A_QUEUE and _is_queue_path(call.request.path):
        raise query.not_here(operation.name)
    call.action = ACTIONS[operation.name]
    call.asked = query.decode(operation, fields)


def _is_queue_path(path: str) -> bool:
    try:
        return path != "/" and bool(queue_urls.parse(unquote(path)))
    except Fault:
        return False


def _read_scope(context: Context, call: Call, fields: dict[str, str]) -> None:
    authorization = call.request.headers.get("authorization")
    try:
        if authorization is None:
            call.scope = sigv4.parse(None, fields)
        elif context.config.is_auth_on:
            call.scope = _signed_scope(context.scopes, authorization, fields)
        else:
            call.scope = _remembered_scope(context.scopes, authorization, fields)
    except Fault as refusal:
        call.scope_fault = refusal  # whether it matters is for authenticate to say


def _remembered_scope(
    scopes: dict[str, sigv4.CredentialScope], authorization: str, fields: dict[str, str]
) -> sigv4.CredentialScope | None:
    """While nobody is asked who they are, only the credential counts, and it is the same all day,
    while the signature behind it differs each time and is never looked at. Reading it afresh took
    a fifth of a send."""
    credential = authorization[: authorization.find(",")]
    scope = scopes.get(credential)
    if scope is None:
        scope = sigv4.parse(authorization, fields)
        if scope is not None and "Credential=" in credential and len(credential) < 512:
            if len(scopes) >= SCOPES_MAX:
                scopes.clear()
            scopes[credential] = scope
    return scope


def _signed_scope(
    scopes: dict[str, sigv4.CredentialScope], authorization: str, fields: dict[str, str]
) -> sigv4.CredentialScope | None:
    """What stands before the signature is the same all day for requests of one sort."""
    head, mark, signature = authorization.rpartition("Signature=")
    known = scopes.get(head)
    if known is None or "," in signature:
        scope = sigv4.parse(authorization, fields)
        if scope is not None and mark and scope.signature == signature and len(head) < 512:
            if len(scopes) >= SCOPES_MAX:
                scopes.clear()
            scopes[head] = scope
        return scope
    return sigv4.CredentialScope(
        known.access_key,
        known.date,
        known.region,
        known.service,
        known.signed_headers,
        signature,
    )
