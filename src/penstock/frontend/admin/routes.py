"""Every path of the admin API: what is done there, and what it takes to be let in.

Resources about identities look after rights themselves, for they know whom they are about. The
others get theirs here: an operator's, or that of an SQS action on the queues of the caller's own
tenant. The policy of a queue that the path names is evaluated as it is for an SQS request.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from penstock.frontend.admin import (
    backup,
    cluster,
    coordinators,
    data_key,
    explain,
    keys,
    metrics,
    node,
    policies,
    probes,
    queues,
    tenants,
    users,
)
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
from penstock.frontend.admin.messages import RECEIVE, Messages
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import METRICS, admin_arn, may, may_use_queue
from penstock.model.errors import AccessDenied
from penstock.model.names import queue_arn
from penstock.net.exchange import HttpReply

Resource = Callable[[Context, Call], Awaitable[HttpReply]]

ANY = "*"  # stands for one segment of a path
OPEN = "open"  # to everybody: a machine beside us that learns next to nothing, or who logs in
KNOWN = "known"  # to everybody we know; the resource sees to the rest
OPERATOR = "operator"
# Any other right is an action that policies allow: METRICS, or an SQS action.

_API = ("api", "v1")
_QUEUES = (*_API, "queues")  # the next segment is the name of a queue


class Route(NamedTuple):
    method: str
    path: tuple[str, ...]
    resource: Resource
    right: str
    noted: Noted | None = None  # in the audit trail; None: nothing is changed

    def fits(self, path: tuple[str, ...]) -> bool:
        return len(path) == len(self.path) and all(
            given if wanted == ANY else given == wanted
            for given, wanted in zip(path, self.path, strict=True)
        )


# Of the cluster as a whole; those about one node name it in the path.
_CLUSTER_CHANGES = (
    *(
        Route(
            "POST",
            (*_API, "cluster", "nodes", ANY, verb),
            resource,
            OPERATOR,
            Noted(f"admin:{action}", CLUSTER),
        )
        for verb, resource, action in (
            ("drain", cluster.drain, "DrainNode"),
            ("undrain", cluster.undrain, "UndrainNode"),
            ("decommission", cluster.decommission, "DecommissionNode"),
        )
    ),
    *(
        Route(
            "POST", (*_API, "cluster", verb), resource, OPERATOR, Noted(f"admin:{action}", CLUSTER)
        )
        for verb, resource, action in (
            ("rebalance", cluster.rebalance, "RebalanceLeaders"),
            ("place", cluster.place, "PlacePartition"),
            ("unclean-elect", cluster.unclean_elect, "ElectUncleanly"),
            ("upgrade", cluster.upgrade, "RaiseFeatureLevel"),
        )
    ),
)


# All of it is for operators: whoever copies everything can read everything.
_BACKUPS = (
    Route("POST", (*_API, "backups"), backup.begin, OPERATOR, Noted("admin:CreateBackup", CLUSTER)),
    Route("GET", (*_API, "backups", ANY, "partitions"), backup.partitions, OPERATOR),
    Route("GET", (*_API, "backups", ANY, "definitions"), backup.definitions, OPERATOR),
    Route("GET", (*_API, "backups", ANY, "records"), backup.records, OPERATOR),
    Route("DELETE", (*_API, "backups", ANY), backup.end, OPERATOR),
)


# A row may hold what any tenant has committed, and skipping one changes what all of them see.
_COORDINATORS = (
    Route("GET", (*_API, "coordinators", ANY, ANY), coordinators.show, OPERATOR),
    Route(
        "POST",
        (*_API, "coordinators", ANY, ANY, "skip"),
        coordinators.skip,
        OPERATOR,
        Noted("admin:SkipRow", COORDINATOR),
    ),
)


def routes(log_in: Resource) -> Sequence[Route]:
    """Of one node: the tail of messages counts those who wait on it."""
    return (
        Route("GET", ("healthz",), probes.healthz, OPEN),
        Route("GET", ("readyz",), probes.readyz, OPEN),
        Route("GET", ("startupz",), probes.startupz, OPEN),
        Route("POST", (*_API, "login"), log_in, OPEN, Noted(LOG_IN, NODE)),
        Route("GET", ("metrics",), metrics.totals, METRICS),
        Route("GET", ("metrics", "objects"), metrics.objects, METRICS),
        Route("GET", (*_API, "info"), node.info, KNOWN),
        Route("GET", (*_API, "config"), node.config, OPERATOR),
        Route("GET", (*_API, "callees"), node.callees, OPERATOR),
        Route("GET", (*_API, "cluster"), cluster.state, OPERATOR),
        Route("GET", (*_API, "cluster", "partitions"), cluster.partitions, OPERATOR),
        Route("GET", (*_API, "cluster", "safety"), cluster.safety, OPERATOR),
        *_CLUSTER_CHANGES,
        *_BACKUPS,
        *_COORDINATORS,
        Route("GET", _QUEUES, queues.many, "sqs:ListQueues"),
        Route("GET", (*_QUEUES, ANY), queues.one, "sqs:GetQueueAttributes"),
        Route("GET", (*_QUEUES, ANY, "messages"), Messages(), RECEIVE),
        Route("GET", (*_QUEUES, ANY, "explain"), explain.one, "sqs:GetQueueAttributes"),
        Route(
            "POST",
            (*_QUEUES, ANY, "rotate"),
            data_key.rotate,
            "sqs:SetQueueAttributes",
            Noted("admin:RotateDataKey", QUEUE),
        ),
        Route("GET", (*_API, "tenants"), tenants.many, KNOWN),
        Route(
            "POST", (*_API, "tenants"), tenants.create, KNOWN, Noted("admin:CreateTenant", TENANT)
        ),
        Route("GET", (*_API, "tenants", ANY), tenants.one, KNOWN),
        Route(
            "PATCH",
            (*_API, "tenants", ANY),
            tenants.change,
            KNOWN,
            Noted("admin:ChangeTenant", TENANT),
        ),
        Route(
            "DELETE",
            (*_API, "tenants", ANY),
            tenants.delete,
            KNOWN,
            Noted("admin:DeleteTenant", TENANT),
        ),
        Route("GET", (*_API, "quotas", ANY), tenants.quotas, KNOWN),
        Route(
            "PATCH",
            (*_API, "quotas", ANY),
            tenants.set_quotas,
            KNOWN,
            Noted("admin:SetQuotas", TENANT),
        ),
        Route("GET", (*_API, "users"), users.many, KNOWN),
        Route("POST", (*_API, "users"), users.create, KNOWN, Noted("admin:CreateUser", USER)),
        Route("GET", (*_API, "users", ANY), users.one, KNOWN),
        Route(
            "DELETE", (*_API, "users", ANY), users.delete, KNOWN, Noted("admin:DeleteUser", USER)
        ),
        Route(
            "PUT",
            (*_API, "users", ANY, "password"),
            users.set_password,
            KNOWN,
            Noted("admin:SetPassword", USER),
        ),
        Route(
            "DELETE",
            (*_API, "users", ANY, "password"),
            users.delete_password,
            KNOWN,
            Noted("admin:DeletePassword", USER),
        ),
        Route("GET", (*_API, "keys"), keys.many, KNOWN),
        Route("POST", (*_API, "keys"), keys.create, KNOWN, Noted("admin:CreateKey", KEY)),
        Route("GET", (*_API, "keys", ANY), keys.one, KNOWN),
        Route("PATCH", (*_API, "keys", ANY), keys.change, KNOWN, Noted("admin:ChangeKey", KEY)),
        Route("DELETE", (*_API, "keys", ANY), keys.delete, KNOWN, Noted("admin:DeleteKey", KEY)),
        Route(
            "POST",
            (*_API, "keys", ANY, "rotate"),
            keys.rotate,
            KNOWN,
            Noted("admin:RotateKey", KEY),
        ),
        Route("POST", (*_API, "policies", "test"), policies.test, KNOWN),
        Route("GET", (*_API, "policies", ANY), policies.many, KNOWN),
        Route("GET", (*_API, "policies", ANY, ANY), policies.one, KNOWN),
        Route(
            "PUT",
            (*_API, "policies", ANY, ANY),
            policies.put,
            KNOWN,
            Noted("admin:PutPolicy", POLICY),
        ),
        Route(
            "DELETE",
            (*_API, "policies", ANY, ANY),
            policies.remove,
            KNOWN,
            Noted("admin:DeletePolicy", POLICY),
        ),
    )


def let_in(context: Context, call: Call, right: str) -> Call:
    """The call as the resource is to see it: held to the caller's own account, unless the caller
    is an operator. Raises AccessDenied."""
    caller = call.caller
    if right in (OPEN, KNOWN) or caller.is_operator:
        return call
    if right == OPERATOR:
        raise AccessDenied("Only an operator may do this.")
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
