"""One admin request with path, query and body taken apart, and the parts of the node it may ask.

Parameters and bodies are checked here once: a repeated, unknown or malformed one is the caller's
mistake and is named, since a misspelt ``prefix`` that is ignored answers a question nobody asked.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock.frontend.admin.backup_port import BackupPort
from penstock.frontend.admin.cluster_port import ClusterPort
from penstock.frontend.admin.coordinator_port import CoordinatorPort
from penstock.frontend.admin.directory import Directory
from penstock.frontend.admin.health import Health
from penstock.frontend.callees import Callees
from penstock.frontend.decisions import Decisions
from penstock.frontend.quotas import TenantQuotas
from penstock.frontend.sealing import Sealing
from penstock.frontend.throttle import Throttler
from penstock.model.errors import InvalidRequest
from penstock.model.identity import Caller
from penstock.model.ports import Backend, Catalog, Clock, Sleep
from penstock.net.exchange import HttpRequest
from penstock.telemetry.metrics import Meter

PARAMETERS_MAX = 16
NOBODY = Caller("", "")  # before the gate

T = TypeVar("T")


class Info(msgspec.Struct, frozen=True):
    """What ``/api/v1/info`` tells about this node; fixed for its life."""

    version: str
    node: str
    mode: str
    account: str
    region: str
    data: str
    started_at_ms: int
    endpoints: Mapping[str, str] = {}  # such as {"sqs": "http://127.0.0.1:9324"}
    kafka_protocol: str = ""  # such as SASL_SSL, as Kafka clients call it
    roles: Sequence[str] = ()
    clock_trusted: bool | None = None


class ConfigRow(msgspec.Struct, frozen=True):
    """One setting with its origin; secrets are masked by whoever makes it."""

    key: str
    value: str
    origin: str


class Context(msgspec.Struct, frozen=True):
    """What resources may ask. Built once by ``api.AdminApi``."""

    backend: Backend
    catalog: Catalog
    meter: Meter
    health: Health
    clock: Clock
    sleep: Sleep
    info: Info
    config: Sequence[ConfigRow]
    everything: Catalog  # streams as well
    identities: Directory | None = None
    decisions: Decisions | None = None  # there when identities are
    sealing: Sealing | None = None
    callees: Callees | None = None
    quotas: TenantQuotas | None = None  # None: usage and shares are not shown
    throttler: Throttler | None = None  # None: rate limits are not shown
    cluster: ClusterPort | None = None
    backup: BackupPort | None = None
    coordinators: CoordinatorPort | None = None


class Call(msgspec.Struct, frozen=True):
    path: tuple[str, ...]  # decoded segments
    query: Mapping[str, str]
    body: bytes = b""
    peer: str = ""
    is_tls: bool = False
    caller: Caller = NOBODY

    def only(self, names: Collection[str]) -> None:
        for name in self.query:
            if name not in names:
                expected = ", ".join(sorted(names)) or "none"
                raise InvalidRequest(f"Unknown parameter {name!r}; expected {expected}.")

    def json(self, kind: type[T]) -> T:
        """The body, exactly of this kind."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.ValidationError as exc:
            # Says which field and what was expected, and shows no value.
            raise InvalidRequest(f"The body does not fit: {exc}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidRequest("The body is not JSON.") from None

    def text(self, name: str, default: str = "") -> str:
        return self.query.get(name, default)

    def number(self, name: str, *, default: int, least: int, most: int) -> int:
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise InvalidRequest(f"{name} is a number from {least} to {most}.")
        value = int(text)
        if not least <= value <= most:
            raise InvalidRequest(f"{name} is a number from {least} to {most}.")
        return value


def parse(request: HttpRequest) -> Call:
    try:
        pairs = parse_qsl(
            request.query,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
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
