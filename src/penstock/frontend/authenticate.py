"""Second stage: who asks, and in which namespace of names.

In development mode every caller is believed, signed or not, and a signature that makes no sense
counts as none: it still chooses the region, because clients expect regions to be apart; without
one, the host that was dialled does. A key of twelve digits chooses the account too, which is how
test suites play several of them. Outside development mode a request without a signature is refused,
and so is every signature until there are keys to verify it with: an open door would be worse than a
closed one."""

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.model.names import is_account
from penstock.wire.aws.faults import fault
from penstock.wire.aws.queue_urls import region_in_host


def authenticate(context: Context, call: Call) -> None:
    config = context.config
    scope = call.scope
    if not config.is_dev:
        if call.scope_fault is not None:
            raise call.scope_fault
        raise fault("MissingAuthenticationToken" if scope is None else "InvalidClientTokenId")
    if scope is None:
        call.account = config.account
        call.region = region_in_host(call.request.headers.get("host", "")) or config.region
        call.sender = config.account
    else:
        call.account = scope.access_key if is_account(scope.access_key) else config.account
        call.region = scope.region
        call.sender = scope.access_key
