"""The second stage: who is calling, and in which account and region.

With authentication off every caller is trusted, and an invalid signature counts as none. A
signature still selects the region; without one, the host name does. A key of twelve digits also
selects the account, so that test suites can act as several accounts.

With authentication on, a request must be signed with a known and active access key. The region is
that of the signature; a host name with another region is an error."""

from functools import lru_cache
from typing import Final

from penstock.frontend.sqs.context import Call, Context
from penstock.frontend.sqs.protocols import STS_JSON, STS_QUERY
from penstock.model.identity import Caller
from penstock.model.limits import MINUTE_MS
from penstock.model.names import is_account
from penstock.wire.aws import sigv4
from penstock.wire.aws.faults import fault
from penstock.wire.aws.queue_urls import region_in_host

TRUSTED_MAX: Final = 1_000  # callers to cache; a few hundred bytes each
_HOSTS_MAX: Final = 256
_ANONYMOUS: Final = "anonymous"


def authenticate(context: Context, call: Call) -> None:
    if context.config.is_auth_on:
        _verify(context, call)
    else:
        _trust(context, call)


def authenticate_again(context: Context, call: Call) -> None:
    """Check a caller that has waited, but not the signature."""
    assert call.scope is not None, "it was verified"
    context.signers.of(call.scope).check(is_genuine=True)


def _verify(context: Context, call: Call) -> None:
    if call.scope_fault is not None:
        raise call.scope_fault
    scope, http = call.scope, call.http
    if scope is None:
        raise fault("MissingAuthenticationToken")
    service = "sts" if call.codec is STS_QUERY or call.codec is STS_JSON else "sqs"
    now_ms = context.clock.wall_ms()
    timestamp = sigv4.check(http, scope, service=service, now_ms=now_ms)
    region = _region_in_host(http.headers.get("host", "")[:256])
    if region is not None and region != scope.region:
        raise fault(
            "SignatureDoesNotMatch",
            f"Credential should be scoped to a valid region, not '{scope.region}'.",
        )
    signer = context.signers.of(scope)
    is_genuine = sigv4.is_genuine(
        http, scope, timestamp=timestamp, key=signer.signing_key, body_hash=call.body_hash
    )
    if not (is_genuine and signer.is_usable):
        signer.check(is_genuine=is_genuine)
    if now_ms - signer.noted_at_ms >= MINUTE_MS:
        context.signers.note_used(signer, now_ms=now_ms)
    call.caller = signer.caller
    call.account = signer.caller.account
    call.region = scope.region
    call.sender = signer.sender


def _trust(context: Context, call: Call) -> None:
    config = context.config
    scope = call.scope
    if scope is None:
        call.region = region_in_host(call.http.headers.get("host", "")) or config.region
        call.sender = config.account
        key = _ANONYMOUS
    else:
        call.region = scope.region
        call.sender = key = scope.access_key
    trusted = context.trusted
    caller = trusted.get(key)
    if caller is None:
        if len(trusted) >= TRUSTED_MAX:
            trusted.clear()
        account = key if is_account(key) else config.account
        caller = trusted[key] = Caller(account, key, is_trusted=True)
    call.caller = caller
    call.account = caller.account


_region_in_host = lru_cache(maxsize=_HOSTS_MAX)(region_in_host)
