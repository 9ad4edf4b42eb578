"""Every path of the admin API, with its handler and the right that it needs.

Handlers about identities check rights themselves, because they know the user. For the others the
right is in the table: that of an operator, or an SQS action on queues of the caller's own tenant.
The policy of a queue in the path is evaluated as for an SQS request."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from penstock.frontend.admin.audited import (
    CLUSTER,
    COORDINATOR,
    KEY,
    LOG_IN,
    NODE,
    POLICY,
    QUEUE,
    TENANT,
    USER,
    Noted,
)
from penstock.frontend.admin.identities import keys, policies, tenants, users
from penstock.frontend.admin.operations import backup, cluster, coordinators, node
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import METRICS, admin_arn, may, may_use_queue, operator_only
from penstock.frontend.admin.topics import explain, metrics, queues
from penstock.frontend.admin.topics.messages import RECEIVE, Messages
from penstock.model.errors import AccessDenied
from penstock.model.names import queue_arn
from penstock.net.http.exchange import HttpReply

Resource = Callable[[Context, Call], Awaitable[HttpReply]]

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
    noted: Noted | None = None  # in the audit trail; None: the route changes nothing

    def fits(self, path: tuple[str, ...]) -> bool:
        return len(path) == len(self.path) and all(
            given if wanted == ANY else given == wanted
            for given, wanted in zip(path, self.path, strict=True)
        )


def _route(pattern: str, resource: Resource, right: str, action: str = "", kind: str = "") -> Route:
    """``pattern`` is as in ``GET /api/v1/queues/*?account&region``."""
    method, _, target = pattern.partition(" ")
    path, _, query = target.partition("?")
    parameters = tuple(query.split("&")) if query else ()
    noted = Noted(f"admin:{action}", kind) if action else None
    return Route(method, tuple(path.strip("/").split("/")), resource, right, parameters, noted)


# Of a backup: a copy of everything gives access to everything. Of coordinators: a row may have data
# of any tenant, and skipping one affects all tenants.
_OPERATIONS = (
    _route("GET /api/v1/config", node.config, OPERATOR),
    _route("GET /api/v1/callees", node.callees, OPERATOR),
    _route("GET /api/v1/cluster", cluster.state, OPERATOR),
    _route(
        "GET /api/v1/cluster/partitions?topic&account&region&node&state&limit&after",
        cluster.partitions,
        OPERATOR,
    ),
    _route("GET /api/v1/cluster/safety?node", cluster.safety, OPERATOR),
    *(
        _route(f"POST /api/v1/cluster/{path}", resource, OPERATOR, action, CLUSTER)
        for path, resource, action in (
            ("nodes/*/drain", cluster.drain, "DrainNode"),
            ("nodes/*/undrain", cluster.undrain, "UndrainNode"),
            ("nodes/*/decommission", cluster.decommission, "DecommissionNode"),
            ("rebalance", cluster.rebalance, "RebalanceLeaders"),
            ("place", cluster.place, "PlacePartition"),
            ("unclean-elect", cluster.unclean_elect, "ElectUncleanly"),
            ("upgrade", cluster.upgrade, "RaiseFeatureLevel"),
        )
    ),
    _route("POST /api/v1/backups", backup.begin, OPERATOR, "CreateBackup", CLUSTER),
    _route("GET /api/v1/backups/*/partitions?after&limit", backup.partitions, OPERATOR),
    _route("GET /api/v1/backups/*/definitions?after", backup.definitions, OPERATOR),
    _route("GET /api/v1/backups/*/records?topic_id&partition&offset", backup.records, OPERATOR),
    _route("DELETE /api/v1/backups/*", backup.end, OPERATOR),
    _route("GET /api/v1/coordinators/*/*?offset", coordinators.show, OPERATOR),
    _route(
        "POST /api/v1/coordinators/*/*/skip", coordinators.skip, OPERATOR, "SkipRow", COORDINATOR
    ),
)

_IDENTITIES = tuple(
    _route(pattern, resource, KNOWN, *noted)
    for pattern, resource, *noted in (
        ("GET /api/v1/tenants?limit&after", tenants.many),
        ("POST /api/v1/tenants", tenants.create, "CreateTenant", TENANT),
        ("GET /api/v1/tenants/*", tenants.one),
        ("PATCH /api/v1/tenants/*", tenants.change, "ChangeTenant", TENANT),
        ("DELETE /api/v1/tenants/*", tenants.delete, "DeleteTenant", TENANT),
        ("GET /api/v1/quotas/*", tenants.quotas),
        ("PATCH /api/v1/quotas/*", tenants.set_quotas, "SetQuotas", TENANT),
        ("GET /api/v1/users?tenant", users.many),
        ("POST /api/v1/users", users.create, "CreateUser", USER),
        ("GET /api/v1/users/*?tenant", users.one),
        ("DELETE /api/v1/users/*?tenant", users.delete, "DeleteUser", USER),
        ("PUT /api/v1/users/*/password?tenant", users.set_password, "SetPassword", USER),
        ("DELETE /api/v1/users/*/password?tenant", users.delete_password, "DeletePassword", USER),
        ("GET /api/v1/keys?tenant&user", keys.many),
        ("POST /api/v1/keys", keys.create, "CreateKey", KEY),
        ("GET /api/v1/keys/*", keys.one),
        ("PATCH /api/v1/keys/*", keys.change, "ChangeKey", KEY),
        ("DELETE /api/v1/keys/*", keys.delete, "DeleteKey", KEY),
        ("POST /api/v1/keys/*/rotate", keys.rotate, "RotateKey", KEY),
        ("POST /api/v1/policies/test", policies.test),
        ("GET /api/v1/policies/*?tenant", policies.many),
        ("GET /api/v1/policies/*/*?tenant", policies.one),
        ("PUT /api/v1/policies/*/*?tenant", policies.put, "PutPolicy", POLICY),
        ("DELETE /api/v1/policies/*/*?tenant", policies.remove, "DeletePolicy", POLICY),
    )
)


def routes(log_in: Resource) -> Sequence[Route]:
    """Return the routes of one node: ``Messages`` counts the tails that wait on it."""
    return (
        _route("GET /healthz?*", node.healthz, OPEN),
        _route("GET /readyz?*", node.readyz, OPEN),
        _route("GET /startupz?*", node.startupz, OPEN),
        _route("POST /api/v1/login", log_in, OPEN)._replace(noted=Noted(LOG_IN, NODE)),
        _route("GET /metrics", metrics.totals, METRICS),
        _route("GET /metrics/objects?kind&prefix&account&region", metrics.objects, METRICS),
        _route("GET /api/v1/info", node.info, KNOWN),
        *_OPERATIONS,
        _route(
            "GET /api/v1/queues?account&region&prefix&limit&after", queues.many, "sqs:ListQueues"
        ),
        _route("GET /api/v1/queues/*?account&region", queues.one, VIEW),
        _route(
            "GET /api/v1/queues/*/messages?account&region&partition&start&count&wait_ms",
            Messages(),
            RECEIVE,
        ),
        _route("GET /api/v1/queues/*/explain?account&region&user", explain.one, VIEW),
        _route(
            "POST /api/v1/queues/*/rotate?account&region",
            queues.rotate_data_key,
            "sqs:SetQueueAttributes",
            "RotateDataKey",
            QUEUE,
        ),
        *_IDENTITIES,
    )


def let_in(context: Context, call: Call, route: Route) -> Call:
    """Return the call for the handler: limited to the caller's own account, unless the caller is an
    operator. Raises AccessDenied, or InvalidRequest for an unknown parameter."""
    call = _checked(context, call, route.right)
    if route.parameters != (ANY,):
        call.only(route.parameters)
    return call


def _checked(context: Context, call: Call, right: str) -> Call:
    caller = call.caller
    if right in (OPEN, KNOWN) or caller.is_operator:
        return call
    if right == OPERATOR:
        operator_only(call)
    account = caller.account
    if call.text("account", account) != account:
        raise AccessDenied("This is not your tenant.")
    if right == METRICS:
        may(context, call, METRICS, admin_arn(context, account, "metrics"))
        if call.path == ("metrics",):
            if account != context.info.account:
                raise AccessDenied("Totals are of all tenants: use /metrics/objects for your own.")
            return call
    elif len(call.path) > len(_QUEUES):
        may_use_queue(context, call, right, call.path[len(_QUEUES)])
    else:
        region = call.text("region") or context.info.region
        may(context, call, right, queue_arn(account, region, "*"))
    return msgspec.structs.replace(call, query={**call.query, "account": account})
