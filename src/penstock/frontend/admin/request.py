"""One admin request with path, query and body parsed, and the parts of the node that handlers use.

A repeated, unknown or malformed parameter is an error: ignoring a misspelt ``prefix`` would return
the wrong rows."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock.access.decisions import Decisions
from penstock.calls.callees import Callees
from penstock.frontend.admin.ports.backup_port import BackupPort
from penstock.frontend.admin.ports.cluster_port import ClusterPort
from penstock.frontend.admin.ports.coordinator_port import CoordinatorPort
from penstock.frontend.admin.ports.health import Health
from penstock.frontend.encryption.sealing import Sealing
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import Throttler
from penstock.metadata.security.identities import StoredIdentities
from penstock.model.calls import BrokerPort
from penstock.model.errors import InvalidRequest, TopicNotFound
from penstock.model.identity import Caller
from penstock.model.ports import Catalog, Clock, Sleep
from penstock.model.topic import Topic
from penstock.net.http.exchange import HttpRequest
from penstock.telemetry.metrics import Meter

PARAMETERS_MAX = 16
UNKNOWN = Caller("", "")  # before authentication

T = TypeVar("T")


class Info(msgspec.Struct, frozen=True):
    """Facts about this node for ``/api/v1/info``, which do not change."""

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
    """One setting with its origin; secrets are masked."""

    key: str
    value: str
    origin: str


class Context(msgspec.Struct, frozen=True, kw_only=True):
    broker: BrokerPort
    catalog: Catalog  # queues only
    everything: Catalog  # streams as well
    meter: Meter
    health: Health
    clock: Clock
    info: Info
    sleep: Sleep = asyncio.sleep
    config: Sequence[ConfigRow] = ()
    identities: StoredIdentities | None = None
    decisions: Decisions | None = None  # made from the identities
    sealing: Sealing | None = None
    callees: Callees | None = None
    quotas: TenantQuotas | None = None  # None: usage and shares are not shown
    throttler: Throttler | None = None  # None: rate limits are not shown
    cluster: ClusterPort | None = None
    backup: BackupPort | None = None
    coordinators: CoordinatorPort | None = None

    def __post_init__(self) -> None:
        if self.identities is not None:
            msgspec.structs.force_setattr(self, "decisions", Decisions(self.identities))


class Call(msgspec.Struct, frozen=True):
    path: tuple[str, ...]  # decoded segments
    query: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    is_tls: bool = False
    caller: Caller = UNKNOWN

    def only(self, names: Collection[str]) -> None:
        """Raise InvalidRequest for a parameter that is not in ``names``."""
        for name in self.query:
            if name not in names:
                expected = ", ".join(sorted(names)) or "none"
                raise InvalidRequest(f"Unknown parameter {name!r}; expected {expected}.")

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
        text = self.query.get(name)
        if text is None:
            return default
        is_number = text.isascii() and text.isdigit() and len(text) <= 19
        if not is_number or not least <= int(text) <= most:
            raise InvalidRequest(f"{name} must be a number from {least} to {most}.")
        return int(text)


def parse(request: HttpRequest) -> Call:
    try:
        pairs = parse_qsl(
            request.query, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX
        )
        segments = tuple(
            unquote(part, errors="strict") for part in request.path.strip("/").split("/")
        )
    except (ValueError, UnicodeDecodeError) as exc:
        raise InvalidRequest("The path or query is not valid.") from exc
    query = dict(pairs)
    if len(query) != len(pairs):
        raise InvalidRequest("A parameter is given twice.")
    return Call(segments, query, request.body, request.peer, request.is_tls)


def find_topic(context: Context, catalog: Catalog, name: str, account: str, region: str) -> Topic:
    """Return a topic; empty account and region mean those of the node. Raises TopicNotFound."""
    topic = catalog.find(account or context.info.account, region or context.info.region, name)
    if topic is None:
        raise TopicNotFound(name)
    return topic
