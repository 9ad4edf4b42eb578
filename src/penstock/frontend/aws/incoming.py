"""The first three stages of an SQS request: ``identify`` parses the signature and the headers,
``authenticate`` determines the caller, account and region, and ``decode`` parses the body. With
authentication on, the body of an unsigned request is never decoded.

The service (SQS, SNS or STS) is determined by the X-Amz-Target header, else by the signature, else
by the parameters Version and Action. With authentication off every caller is trusted, and the
signature only selects the region; an access key of twelve digits also selects the account, so that
tests can use several accounts. With authentication on, a region in the host name must match the
signature."""

from collections.abc import Generator
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import msgspec

from penstock.frontend.aws.context import UNKNOWN_ACTION, Call
from penstock.frontend.aws.protocols import JSON, SNS, STS_JSON, STS_QUERY, sns_codec_of
from penstock.frontend.aws.sns.actions import ACTIONS as SNS_ACTIONS
from penstock.frontend.aws.sns.actions import LINKS
from penstock.frontend.aws.sqs.actions import ACTIONS, GET_CALLER_IDENTITY
from penstock.model.identity import Caller
from penstock.model.limits import MINUTE_MS
from penstock.model.names import is_account
from penstock.net.http.exchange import HttpRequest
from penstock.wire.aws import json10, query, queue_urls, sigv4
from penstock.wire.aws.faults import Fault, fault
from penstock.wire.aws.queue_urls import region_in_host
from penstock.wire.aws.shapes import OPERATIONS, QueueRequest
from penstock.wire.aws.sns import protocol as sns

# Actions that are rejected in a form that is sent to the path of a queue.
_NOT_AT_A_QUEUE = frozenset(("CreateQueue", "ListQueues"))

_TARGETS = {json10.TARGET_PREFIX + name: action for name, action in ACTIONS.items()}

SCOPES_MAX = 1_000  # parsed credentials to cache; a few hundred bytes each
SCOPE_CHARS_MAX = 512
TOKEN_BYTES = 16


def identify(call: Call) -> None:
    http = call.http
    _parse_signature(call, query.fields_of(http.query) if http.query else {})
    if call.codec is not JSON:
        service = "" if call.scope is None else call.scope.service
        if service == "sts":
            call.codec = STS_QUERY
        elif service == "sns" or (not service and _is_for_sns(http)):
            call.codec = sns_codec_of(http)
        return
    target = http.headers.get("x-amz-target", "")
    action = _TARGETS.get(target)
    if action is None:
        if target != json10.STS_TARGET:
            raise json10.unknown_operation(target)
        call.codec = STS_JSON
        action = GET_CALLER_IDENTITY
    call.action = action


def decode(call: Call) -> None:
    http = call.http
    if call.codec is JSON:
        call.request = json10.decode(OPERATIONS[call.action.name], http.body)
    elif call.codec is not STS_JSON:
        _read_form(call, query.fields_of(http.query, http.body))
    if http.path != "/":
        _fill_url(call)


def decode_in_steps(call: Call) -> Generator[None, None, None]:
    """Do the same as ``decode`` for a large body. Yields now and then, to let other tasks run."""
    http = call.http
    if call.codec is JSON:
        operation = OPERATIONS[call.action.name]
        token = call.context.entropy(TOKEN_BYTES).hex()
        call.request = yield from json10.decode_in_steps(operation, http.body, token)
    elif call.codec is not STS_JSON:
        _read_form(call, (yield from query.fields_in_steps(http.query, http.body)))
    if http.path != "/":
        _fill_url(call)


def _is_for_sns(http: HttpRequest) -> bool:
    """Return whether an unsigned request has the version of the SNS API or is a link in a message
    to an endpoint. In the value of another field, the equals sign would be escaped."""
    version = sns.VERSION_FIELD
    if version in http.query or query.action_in(http.query, b"") in LINKS:
        return True
    raw = version.encode()
    return http.body.startswith(raw) or b"&" + raw in http.body


def name_action(call: Call) -> None:
    """Set the action, for audit and metrics, of a request that was rejected before ``decode``."""
    name = query.action_in(call.http.query, call.http.body)
    actions = SNS_ACTIONS if call.codec in SNS else ACTIONS
    call.action = actions.get(name, UNKNOWN_ACTION)


def has_action(http: HttpRequest) -> bool:
    """Return False for requests of browsers and health checks, which have no SQS action."""
    if "x-amz-target" in http.headers or http.method not in ("GET", "HEAD"):
        return True
    return "Action=" in http.query


def is_link(query_string: bytes) -> bool:
    """Return whether a query string is a link in a message to an endpoint, whose token or id is the
    proof that its reader may follow it."""
    try:
        return query.fields_of(query_string.decode("latin-1")).get("Action") in LINKS
    except Fault:
        return False


def _fill_url(call: Call) -> None:
    request = call.request
    if isinstance(request, QueueRequest) and request.queue_url is None:
        request.queue_url = unquote(call.http.path)


def _read_form(call: Call, fields: dict[str, str]) -> None:
    service = "" if call.scope is None else call.scope.service
    if call.codec in SNS or sns.is_for_sns(fields, service=service):
        if call.codec not in SNS:
            call.codec = sns_codec_of(call.http)
        operation = sns.operation_of(fields)
        if call.scope is None and call.context.config.is_auth_on and operation.name not in LINKS:
            raise fault("MissingAuthenticationToken")  # the body has another action than the link
        call.action = SNS_ACTIONS[operation.name]
        call.request = query.decode(operation, fields)
        return
    if service == "sts" or (service != "sqs" and fields.get("Action") == query.STS_ACTION):
        call.codec = STS_QUERY
        if fields.get("Action") != query.STS_ACTION:
            raise fault("InvalidAction", f"The only supported STS action is {query.STS_ACTION}.")
        call.action = GET_CALLER_IDENTITY
        return
    operation = query.operation_of(fields)
    if operation.name in _NOT_AT_A_QUEUE and _is_queue_path(call.http.path):
        raise query.not_here(operation.name)
    call.action = ACTIONS[operation.name]
    call.request = query.decode(operation, fields)


def _is_queue_path(path: str) -> bool:
    try:
        return path != "/" and bool(queue_urls.parse(unquote(path)))
    except Fault:
        return False


def _parse_signature(call: Call, fields: dict[str, str]) -> None:
    """Set ``call.scope`` from the signature. The result is cached, because the requests of a client
    have the same header except for the signature itself."""
    authorization = call.http.headers.get("authorization")
    scopes = call.context.scopes
    try:
        if authorization is None:
            call.scope = sigv4.parse(None, fields)
            return
        if call.context.config.is_auth_on:
            key, mark, signature = authorization.rpartition("Signature=")
            known = None if "," in signature else scopes.get(key)
            if known is not None:
                call.scope = msgspec.structs.replace(known, signature=signature)
                return
        else:  # only the credential matters
            key = authorization[: authorization.find(",")]
            known = scopes.get(key)
            if known is not None:
                call.scope = known
                return
        call.scope = scope = sigv4.parse(authorization, fields)
        if scope is None or len(key) >= SCOPE_CHARS_MAX:
            return
        if call.context.config.is_auth_on:
            is_cached = bool(mark) and not scope.is_presigned and scope.signature == signature
        else:
            is_cached = "Credential=" in key
        if is_cached:
            if len(scopes) >= SCOPES_MAX:
                scopes.clear()
            scopes[key] = scope
    except Fault as error:
        call.scope_fault = error  # raised by ``authenticate`` if authentication is on


TRUSTED_MAX: Final = 1_000  # callers to cache; a few hundred bytes each
_HOSTS_MAX: Final = 256
_ANONYMOUS: Final = "anonymous"


def authenticate(call: Call) -> None:
    if call.context.config.is_auth_on:
        _verify(call)
    else:
        _trust(call)


def authenticate_again(call: Call) -> None:
    """Check after a long poll that the caller's access key is still valid."""
    assert call.scope is not None, "the signature was verified"
    call.context.signers.of(call.scope).check(is_genuine=True)


def _verify(call: Call) -> None:
    if call.scope_fault is not None:
        raise call.scope_fault
    scope, http = call.scope, call.http
    if scope is None:
        if call.codec in SNS and query.action_in(http.query, b"") in LINKS:
            call.region = call.context.config.region
            return  # the token or the id in the link is the proof
        raise fault("MissingAuthenticationToken")
    service = "sts" if call.codec is STS_QUERY or call.codec is STS_JSON else "sqs"
    if call.codec in SNS:
        service = "sns"
    now_ms = call.context.clock.wall_ms()
    timestamp = sigv4.check(http, scope, service=service, now_ms=now_ms)
    region = _region_in_host(http.headers.get("host", "")[:256])
    if region is not None and region != scope.region:
        text = f"Credential should be scoped to a valid region, not '{scope.region}'."
        raise fault("SignatureDoesNotMatch", text)
    signer = call.context.signers.of(scope)
    is_genuine = sigv4.is_genuine(
        http, scope, timestamp=timestamp, key=signer.signing_key, body_hash=call.body_hash
    )
    if not (is_genuine and signer.is_usable):
        signer.check(is_genuine=is_genuine)
    if now_ms - signer.noted_at_ms >= MINUTE_MS:
        call.context.signers.note_used(signer, now_ms=now_ms)
    call.caller = signer.caller
    call.account = signer.caller.account
    call.region = scope.region
    call.sender = signer.sender


def _trust(call: Call) -> None:
    config = call.context.config
    scope = call.scope
    if scope is None:
        call.region = region_in_host(call.http.headers.get("host", "")) or config.region
        call.sender = config.account
        key = _ANONYMOUS
    else:
        call.region = scope.region
        call.sender = key = scope.access_key
    trusted = call.context.trusted
    caller = trusted.get(key)
    if caller is None:
        if len(trusted) >= TRUSTED_MAX:
            trusted.clear()
        account = key if is_account(key) else config.account
        caller = trusted[key] = Caller(account, key, is_trusted=True)
    call.caller = caller
    call.account = caller.account


_region_in_host = lru_cache(maxsize=_HOSTS_MAX)(region_in_host)
