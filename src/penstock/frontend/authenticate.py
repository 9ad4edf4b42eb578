"""Second stage: who asks, and in which namespace of names.

With authentication off every caller is believed, signed or not, and a signature that makes no sense
counts as none: it still chooses the region, because clients expect regions to be apart; without
one, the host that was dialled does. A key of twelve digits chooses the account too, which is how
test suites play several of them.

With authentication on a request is signed by an access key that is known and active, or it is
refused. The region is the signature's, unless the host that was dialled names another. What is
signed and how is wire's (``sigv4``), whose keys those are is ``signers``'; what a caller may do is
the next stage's."""

from functools import lru_cache
from typing import Final

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.frontend.protocols import STS_JSON, STS_QUERY
from penstock.model.identity import Caller
from penstock.model.limits import MINUTE_MS
from penstock.model.names import is_account
from penstock.wire.aws import sigv4
from penstock.wire.aws.faults import fault
from penstock.wire.aws.queue_urls import region_in_host

BELIEVED_MAX: Final = 1_000  # callers remembered; each is a few hundred bytes
_HOSTS_MAX: Final = 256
_ANONYMOUS: Final = "anonymous"


def authenticate(context: Context, call: Call) -> None:
    if context.config.is_auth_on:
        _verify(context, call)
    else:
        _believe(context, call)


def authenticate_again(context: Context, call: Call) -> None:
    """For a caller that has waited: its key, user or account may be gone since. The signature
    itself is not looked at again."""
    scope = call.scope
    assert scope is not None, "it was verified"
    context.signers.of(scope).check(is_genuine=True)


def _verify(context: Context, call: Call) -> None:
    if call.scope_fault is not None:
        raise call.scope_fault
    scope, request = call.scope, call.request
    if scope is None:
        raise fault("MissingAuthenticationToken")
    service = "sts" if call.codec is STS_QUERY or call.codec is STS_JSON else "sqs"
    now_ms = context.clock.wall_ms()
    timestamp = sigv4.check(request, scope, service=service, now_ms=now_ms)
    region = _region_in_host(request.headers.get("host", "")[:256])
    if region is not None and region != scope.region:
        raise fault(
            "SignatureDoesNotMatch",
            f"Credential should be scoped to a valid region, not '{scope.region}'.",
        )
    signer = context.signers.of(scope)
    is_genuine = sigv4.is_genuine(
        request,
        scope,
        timestamp=timestamp,
        key=signer.signing_key,
        body_hash=call.body_hash,
    )
    if not (is_genuine and signer.is_usable):
        signer.check(is_genuine=is_genuine)
    if now_ms - signer.noted_at_ms >= MINUTE_MS:
        context.signers.note_used(signer, now_ms=now_ms)
    caller = signer.caller
    call.caller = caller
    call.account = caller.account
    call.region = scope.region
    call.sender = signer.sender


def _believe(context: Context, call: Call) -> None:
    config = context.config
    scope = call.scope
    if scope is None:
        call.region = region_in_host(call.request.headers.get("host", "")) or config.region
        call.sender = config.account
        key = _ANONYMOUS
    else:
        call.region = scope.region
        call.sender = key = scope.access_key
    caller = context.believed.get(key)
    if caller is None:
        caller = Caller(key if is_account(key) else config.account, key, is_trusted=True)
        if len(context.believed) >= BELIEVED_MAX:
            context.believed.clear()
        context.believed[key] = caller
    call.caller = caller
    call.account = caller.account


_region_in_host = lru_cache(maxsize=_HOSTS_MAX)(region_in_host)
