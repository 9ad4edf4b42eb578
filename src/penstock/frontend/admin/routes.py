"""Every path of the admin API with its handler and the right that it needs.

The right is ``OPERATOR`` or an SQS action on queues of the caller's own tenant, which is checked
against policies as for an SQS request. Handlers about users and keys check rights themselves."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.frontend.admin import audited, identities, queues
from penstock.frontend.admin import operations as ops
from penstock.frontend.admin.audited import CLUSTER, KEY, POLICY, TENANT, USER, Noted
from penstock.frontend.admin.messages import RECEIVE, Messages
from penstock.frontend.admin.request import METRICS, Call
from penstock.model.errors import AccessDenied
from penstock.model.names import queue_arn

# Returns an HttpReply or a value to send as JSON, or an awaitable of these.
Resource = Callable[[Call], Any]

ANY = "*"  # any segment of a path, or any parameters
OPEN = "open"  # to everyone, without authentication
KNOWN = "known"  # to every authenticated caller; the handler checks further rights
OPERATOR = "operator"
# Any other right is an action that policies allow: METRICS, or an SQS action.
VIEW = "sqs:GetQueueAttributes"

_QUEUES = ("api", "v1", "queues")  # the next segment is the name of a queue


class Route(NamedTuple):
    method: str
    path: tuple[str, ...]
    resource: Resource
    right: str
    parameters: tuple[str, ...] = ()  # allowed ones; ANY: all
    noted: Noted | None = None  # recorded in the audit trail; None: the route changes nothing

    def fits(self, path: tuple[str, ...]) -> bool:
        return len(path) == len(self.path) and all(
            given if wanted == ANY else given == wanted
            for given, wanted in zip(path, self.path, strict=True)
        )


def _routes(right: str, *rows: tuple[Any, ...]) -> Iterator[Route]:
    """Yield the routes of rows such as ``("GET /queues/*?account&region", handler)``. Paths are
    below ``/api/v1``, except health checks and metrics. A row of a change also has the action and
    the kind of resource for the audit trail."""
    for pattern, resource, *noted in rows:
        method, _, target = pattern.partition(" ")
        path, _, query = target.partition("?")
        segments = tuple(path.strip("/").split("/"))
        if segments[0] not in ("healthz", "readyz", "startupz", "metrics"):
            segments = ("api", "v1", *segments)
        parameters = tuple(query.split("&")) if query else ()
        found = Noted(f"admin:{noted[0]}", noted[1]) if noted else None
        yield Route(method, segments, resource, right, parameters, found)


def routes(log_in: Resource) -> Sequence[Route]:
    return (
        *_routes(
            OPEN,
            ("GET /healthz?*", lambda _: {"status": "alive"}),
            ("GET /readyz?*", ops.readyz),
            ("GET /startupz?*", ops.startupz),
            ("POST /login", log_in, "LogIn", audited.NODE),
        ),
        *_routes(
            METRICS,
            ("GET /metrics", queues.totals),
            ("GET /metrics/objects?kind&prefix&account&region", queues.objects),
        ),
        *_routes(KNOWN, ("GET /info", ops.info)),
        *_OPERATIONS,
        *_routes("sqs:ListQueues", ("GET /queues?account&region&prefix&limit&after", queues.many)),
        *_routes(VIEW, ("GET /queues/*?account&region", queues.one)),
        *_routes(
            RECEIVE,
            ("GET /queues/*/messages?account&region&partition&start&count&wait_ms", Messages()),
        ),
        *_routes(VIEW, ("GET /queues/*/explain?account&region&user", queues.explained)),
        *_routes(
            "sqs:SetQueueAttributes",
            (
                "POST /queues/*/rotate?account&region",
                queues.rotate_data_key,
                "RotateDataKey",
                audited.QUEUE,
            ),
        ),
        *_IDENTITIES,
    )


# Backups and rows of coordinators contain data of all tenants, so only operators may read them.
_OPERATIONS = tuple(
    _routes(
        OPERATOR,
        ("GET /config", lambda call: {"settings": call.context.config}),
        ("GET /callees", ops.callees),
        ("GET /cluster", ops.state),
        ("GET /cluster/partitions?topic&account&region&node&state&limit&after", ops.partitions),
        ("GET /cluster/safety?node", ops.safety),
        ("POST /cluster/nodes/*/drain", ops.drain, "DrainNode", CLUSTER),
        ("POST /cluster/nodes/*/undrain", ops.undrain, "UndrainNode", CLUSTER),
        ("POST /cluster/nodes/*/decommission", ops.decommission, "DecommissionNode", CLUSTER),
        ("POST /cluster/rebalance", ops.rebalance, "RebalanceLeaders", CLUSTER),
        ("POST /cluster/place", ops.place, "PlacePartition", CLUSTER),
        ("POST /cluster/unclean-elect", ops.unclean_elect, "ElectUncleanly", CLUSTER),
        ("POST /cluster/upgrade", ops.upgrade, "RaiseFeatureLevel", CLUSTER),
        ("POST /backups", ops.begin_backup, "CreateBackup", CLUSTER),
        ("GET /backups/*/partitions?after&limit", ops.backup_partitions),
        ("GET /backups/*/definitions?after", ops.backup_definitions),
        ("GET /backups/*/records?topic_id&partition&offset", ops.backup_records),
        ("DELETE /backups/*", ops.end_backup),
        ("GET /coordinators/*/*?offset", ops.show_coordinator),
        ("POST /coordinators/*/*/skip", ops.skip_row, "SkipRow", audited.COORDINATOR),
    )
)

_IDENTITIES = tuple(
    _routes(
        KNOWN,
        ("GET /tenants?limit&after", identities.tenants),
        ("POST /tenants", identities.create_tenant, "CreateTenant", TENANT),
        ("GET /tenants/*", identities.tenant),
        ("PATCH /tenants/*", identities.change_tenant, "ChangeTenant", TENANT),
        ("DELETE /tenants/*", identities.delete_tenant, "DeleteTenant", TENANT),
        ("GET /quotas/*", identities.quotas),
        ("PATCH /quotas/*", identities.set_quotas, "SetQuotas", TENANT),
        ("GET /users?tenant", identities.show_users),
        ("POST /users", identities.create_user, "CreateUser", USER),
        ("GET /users/*?tenant", identities.user),
        ("DELETE /users/*?tenant", identities.delete_user, "DeleteUser", USER),
        ("PUT /users/*/password?tenant", identities.set_password, "SetPassword", USER),
        ("DELETE /users/*/password?tenant", identities.delete_password, "DeletePassword", USER),
        ("GET /keys?tenant&user", identities.keys),
        ("POST /keys", identities.create_key, "CreateKey", KEY),
        ("GET /keys/*", identities.key),
        ("PATCH /keys/*", identities.change_key, "ChangeKey", KEY),
        ("DELETE /keys/*", identities.delete_key, "DeleteKey", KEY),
        ("POST /keys/*/rotate", identities.rotate_key, "RotateKey", KEY),
        ("POST /policies/test", identities.try_access),
        ("GET /policies/*?tenant", identities.policies),
        ("GET /policies/*/*?tenant", identities.policy),
        ("PUT /policies/*/*?tenant", identities.put_policy, "PutPolicy", POLICY),
        ("DELETE /policies/*/*?tenant", identities.remove_policy, "DeletePolicy", POLICY),
    )
)


def let_in(call: Call, route: Route) -> Call:
    """Check the caller's rights. Calls of non-operators are limited to the caller's account."""
    call = _checked(call, route.right)
    if route.parameters != (ANY,):
        call.only(route.parameters)
    return call


def _checked(call: Call, right: str) -> Call:
    if right in (OPEN, KNOWN) or call.caller.is_operator:
        return call
    if right == OPERATOR:
        call.operator_only()
    account = call.caller.account
    if call.text("account", account) != account:
        raise AccessDenied("This is not your tenant.")
    if right == METRICS:
        call.may_manage(METRICS, account, "metrics")
        if call.path == ("metrics",):
            if account != call.context.info.account:
                raise AccessDenied("/metrics is for all tenants: use /metrics/objects for yours.")
            return call
    elif len(call.path) > len(_QUEUES):
        call.may_use_queue(right, call.path[len(_QUEUES)])
    else:
        call.may(right, queue_arn(account, call.region, "*"))
    return msgspec.structs.replace(call, query={**call.query, "account": account})
