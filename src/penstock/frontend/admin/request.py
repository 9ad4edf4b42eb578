"""One admin request: its path, query, body, the rights of its caller, and its reply. A repeated or
unknown parameter is an error, because ignoring a misspelt ``prefix`` would return the wrong rows.

An operator may do everything for every tenant. Other users are limited to their own tenant and to
what their policies allow: ``admin:Read`` and ``admin:Write`` on ARNs such as
``arn:penstock:admin:<region>:<account>:user/<name>``. Only an operator may change an operator.
``admin:Metrics`` allows a user to read metrics of the tenant's queues. Users of the account in
the setting ``account`` may also read totals over all tenants."""

import asyncio
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock.access.decisions import Decisions
from penstock.access.evaluation import Decision
from penstock.calls.callees import Callees
from penstock.frontend.admin.login import Gate
from penstock.frontend.admin.ports import (
    BackupPort,
    ClusterPort,
    CoordinatorPort,
    Health,
    PushPorts,
)
from penstock.frontend.encryption.sealing import Sealing
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import Throttler
from penstock.metadata.security.identities import StoredIdentities
from penstock.model import errors
from penstock.model.calls import BrokerPort
from penstock.model.errors import AccessDenied, InvalidRequest, NotFound, TopicNotFound
from penstock.model.identity import Caller, Circumstances, Tenant, User
from penstock.model.limits import TENANT_TAILS_PERCENT
from penstock.model.names import is_account, queue_arn
from penstock.model.ports import Catalog, Clock, Sleep
from penstock.model.quotas import SharedLimit
from penstock.model.topic import Topic
from penstock.net.http.exchange import TURN_BYTES_MAX, HttpReply, HttpRequest
from penstock.net.slices import in_slices
from penstock.telemetry.metrics import Meter

PARAMETERS_MAX = 16
TAILS_MAX = 64  # requests that wait for messages at the same time
UNKNOWN = Caller("", "")  # before authentication
READ = "admin:Read"
WRITE = "admin:Write"
METRICS = "admin:Metrics"
Headers = tuple[tuple[str, str], ...]
JSON = "application/json"
# Replies show the current state, so they must not be cached.
HEADERS = (("cache-control", "no-store"),)
# A browser may show a reply as data only: not run it, not guess its type, not frame it.
BROWSER_HEADERS: Final = (
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)
# Status and code of an error, by the nearest base class in this table.
FAULTS: Mapping[type[Exception], tuple[int, str]] = {
    errors.InvalidRequest: (400, "invalid_request"),
    errors.MissingParameter: (400, "missing_parameter"),
    errors.NotFound: (404, "not_found"),
    errors.TopicNotFound: (404, "queue_not_found"),
    errors.Conflict: (409, "conflict"),
    errors.AccessDenied: (403, "access_denied"),
    errors.Overloaded: (503, "overloaded"),
    errors.Throttled: (429, "throttled"),
    errors.DiskFull: (507, "disk_full"),
    errors.Draining: (503, "draining"),
    errors.Damaged: (500, "damaged"),
    errors.PenstockError: (500, "failed"),
}

T = TypeVar("T")


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True): ...


class Info(msgspec.Struct, frozen=True):
    version: str
    node: str
    mode: str
    account: str
    region: str
    data: str
    started_at_ms: int
    endpoints: Mapping[str, str] = {}  # such as {"sqs": "http://127.0.0.1:9324"}
    kafka_protocol: str = ""  # such as SASL_SSL
    roles: Sequence[str] = ()
    clock_trusted: bool | None = None


class ConfigRow(msgspec.Struct, frozen=True):
    key: str
    value: str
    origin: str


@dataclass(eq=False, kw_only=True)
class Context:
    broker: BrokerPort
    catalog: Catalog  # queues only
    everything: Catalog  # all topics
    meter: Meter
    health: Health
    clock: Clock
    info: Info
    sleep: Sleep = asyncio.sleep
    config: Sequence[ConfigRow] = ()
    identities: StoredIdentities | None = None
    sealing: Sealing | None = None
    callees: Callees | None = None
    quotas: TenantQuotas | None = None  # None: usage and shares are not shown
    throttler: Throttler | None = None  # None: rate limits are not shown
    cluster: ClusterPort | None = None
    backup: BackupPort | None = None
    coordinators: CoordinatorPort | None = None
    push: PushPorts | None = None
    gate: Gate = field(init=False)  # set by ``AdminApi``

    def __post_init__(self) -> None:
        own, most = self.info.account, TAILS_MAX
        self.tails = SharedLimit(most, TENANT_TAILS_PERCENT, own_account=own)  # waiting requests
        self.decisions = None if self.identities is None else Decisions(self.identities)


class Call(msgspec.Struct, frozen=True):
    context: Context
    path: tuple[str, ...]  # decoded segments
    query: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    is_tls: bool = False
    caller: Caller = UNKNOWN
    request_id: str = ""

    # ── Parameters ───────────────────────────────────────────────────────────────────────────

    def only(self, names: Collection[str]) -> None:
        for name in self.query:
            if name not in names:
                expected = ", ".join(sorted(names)) or "none"
                raise InvalidRequest(f"Unknown parameter {name!r}; allowed: {expected}.")

    def json(self, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.ValidationError as exc:
            # Names the field and the expected type, not the value.
            raise InvalidRequest(f"The body is not valid: {exc}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidRequest("The body is not JSON.") from None

    def text(self, name: str, default: str = "") -> str:
        return self.query.get(name, default)

    def number(self, name: str, *, default: int, least: int, most: int) -> int:
        found = self.optional(name, least=least, most=most)
        return default if found is None else found

    def optional(self, name: str, *, least: int, most: int) -> int | None:
        text = self.query.get(name)
        if text is None:
            return None
        number = whole(text, digits_max=19)
        if number is None or not least <= number <= most:
            raise InvalidRequest(f"Parameter {name} must be a number from {least} to {most}.")
        return number

    @property
    def region(self) -> str:
        return self.text("region") or self.context.info.region

    @property
    def now_ms(self) -> int:
        return self.context.clock.wall_ms()

    def topic(
        self, catalog: Catalog, name: str, account: str | None = None, region: str | None = None
    ) -> Topic:
        """Return a topic. A missing account or region is taken from the query or the node."""
        info = self.context.info
        account = self.text("account") if account is None else account
        region = self.region if region is None else region
        topic = catalog.find(account or info.account, region or info.region, name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def queue(self) -> Topic:
        return self.topic(self.context.catalog, self.path[3])

    # ── Rights ───────────────────────────────────────────────────────────────────────────────

    @property
    def identities(self) -> StoredIdentities:
        if self.context.identities is None:
            raise NotFound("This node does not store users and tenants.")
        return self.context.identities

    def operator_only(self) -> None:
        if not self.caller.is_operator:
            raise AccessDenied("Only an operator may do this.")

    def account_of(self, named: str = "") -> str:
        """Return the account of a tenant given by name or account number, by default the caller's
        own. A caller without access gets the same error whether the tenant exists or not."""
        text = named or self.text("tenant")
        if not text:
            return self.caller.account
        account = self.account_named(text)
        if account != self.caller.account and not self.caller.is_operator:
            raise AccessDenied("You may only access your own tenant.")
        if account is None:
            raise NotFound(f"There is no tenant {text[:80]}.")
        return account

    def account_named(self, text: str) -> str | None:
        """Return ``text`` if it is an account number, else the account of the tenant ``text``."""
        identities = self.context.identities
        if is_account(text) or identities is None:
            return text if is_account(text) else None
        found = [tenant.account for tenant in identities.tenants() if tenant.name == text]
        return found[0] if len(found) == 1 else None

    def may(self, action: str, arn: str, topic: Topic | None = None) -> None:
        """Raise AccessDenied if the policies of caller and queue do not allow the action."""
        caller = self.caller
        if not caller.is_operator and not self.decision(caller, action, arn, topic).is_allowed:
            raise AccessDenied(f"{caller.user} may not perform {action} on {arn}.")

    def may_manage(self, action: str, account: str, kind: str, name: str = "*") -> None:
        self.may(action, self.admin_arn(account, kind, name))

    def may_use_queue(self, action: str, name: str) -> None:
        if not self.caller.is_operator:
            place = (self.caller.account, self.region, name)
            self.may(action, queue_arn(*place), self.context.everything.find(*place))

    def decision(self, caller: Caller, action: str, arn: str, topic: Topic | None) -> Decision:
        assert self.context.decisions is not None, "a caller who is not an operator has an identity"
        return self.context.decisions.decide_on_queue(
            self.context.everything,
            caller,
            action,
            arn=arn,
            owner=caller.account,
            topic=topic,
            circumstances=lambda: Circumstances(self.peer, self.is_tls, self.now_ms),
        )

    def admin_arn(self, account: str, kind: str, name: str) -> str:
        return f"arn:penstock:admin:{self.context.info.region}:{account}:{kind}/{name}"

    def known_tenant(self, account: str) -> Tenant:
        tenant = self.identities.tenant(account)
        if tenant is None:
            raise NotFound(f"There is no tenant {account}.")
        return tenant

    def known_user(self, account: str, name: str, action: str) -> User:
        self.may_manage(action, account, "user", name)
        user = self.identities.user(account, name)
        if user is None:
            raise NotFound(f"There is no user {name[:80]} in the tenant {account}.")
        if action == WRITE and user.is_operator and not self.caller.is_operator:
            raise AccessDenied("Only an operator may change an operator.")
        return user

    def path_user(self, action: str) -> User:
        return self.known_user(self.account_of(), self.path[3], action)


def whole(text: str, *, digits_max: int) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= digits_max
    return int(text) if is_number else None


def parse(context: Context, request: HttpRequest) -> Call:
    try:
        query, most = request.query, PARAMETERS_MAX
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=most)
        parts = request.path.strip("/").split("/")
        segments = tuple(unquote(part, errors="strict") for part in parts)
    except (ValueError, UnicodeDecodeError) as exc:
        raise InvalidRequest("The path or query is not UTF-8 or has too many parameters.") from exc
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequest("The query has a parameter that occurs twice.")
    peer, is_tls, request_id = request.peer, request.is_tls, request.request_id
    return Call(context, segments, found, request.body, peer, is_tls, request_id=request_id)


# ── Replies ──────────────────────────────────────────────────────────────────────────────────


def picked(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def json_reply(status: int, value: Any) -> HttpReply:
    return HttpReply(status, msgspec.json.encode(value) + b"\n", JSON, HEADERS)


async def rows_reply(name: str, rows: Iterable[object], rest: Mapping[str, object]) -> HttpReply:
    """Return the reply ``{name: [rows], **rest}``. Other tasks can run while it is encoded."""
    pieces = [b"{%b:[" % msgspec.json.encode(name)]

    def encode() -> Generator[None, None, None]:
        for number, row in enumerate(rows):
            pieces.append(b"," * bool(number) + msgspec.json.encode(row))
            yield None

    await in_slices(encode())
    pieces.append(b"]," + msgspec.json.encode(rest)[1:] + b"\n")
    return large_reply(pieces, JSON, HEADERS)


def large_reply(pieces: Sequence[bytes], content_type: str, headers: Headers = ()) -> HttpReply:
    if sum(map(len, pieces)) <= TURN_BYTES_MAX:
        return HttpReply(200, b"".join(pieces), content_type, headers)
    return HttpReply(200, b"", content_type, headers, tuple(pieces))


def error_reply(status: int, code: str, message: str, headers: Headers = ()) -> HttpReply:
    reply = json_reply(status, {"error": {"code": code, "message": message}})
    reply.headers += headers
    return reply


def fault_of(exc: errors.PenstockError) -> tuple[int, str]:
    return next(FAULTS[kind] for kind in type(exc).__mro__ if kind in FAULTS)


def fault_reply(exc: errors.PenstockError) -> HttpReply:
    status, code = fault_of(exc)
    headers: Headers = ()
    if isinstance(exc, errors.Throttled):
        headers = (("retry-after", str(-(-exc.retry_after_ms // 1_000))),)
    return error_reply(status, code, str(exc), headers)


def forbidden(request: HttpRequest, reason: str) -> HttpReply:
    return finished(request, error_reply(403, "forbidden", reason))


def finished(request: HttpRequest, reply: HttpReply) -> HttpReply:
    if request.method == "HEAD":
        reply.body, reply.pieces = b"", ()
    reply.headers = (*BROWSER_HEADERS, *reply.headers)
    return reply
