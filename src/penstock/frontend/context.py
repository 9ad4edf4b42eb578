"""What every stage and action may reach: the broker, the catalog, the clock, chance, the meter and
the settings, handed down as one value. Nothing here decides anything.

A ``Context`` lives as long as the frontend; a ``Call`` (call.py) lives for one request. The only
state is what a stateless frontend may lose at any time: small bounded memories that save work or
guard a rule the broker checks as well."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.frontend.decisions import Decisions
from penstock.frontend.nobody import Nobody
from penstock.frontend.passes import Passes
from penstock.frontend.purges import PurgeGuard
from penstock.frontend.quotas import TenantQuotas
from penstock.frontend.route import Rotation
from penstock.frontend.sealing import Sealing
from penstock.frontend.signers import Signers
from penstock.frontend.throttle import Throttler
from penstock.model.identity import Caller
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.model.ports import Backend, Catalog, Clock, Identities, Shares
from penstock.wire.aws.sigv4 import CredentialScope

PARTITIONS_MAX = 64  # a queue's partitions are opened together: each costs files and a cursor

AdminUrl = str | Callable[[], str | None] | None


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    account: str = ACCOUNT_DEFAULT
    region: str = REGION_DEFAULT  # for requests whose signature and host name no region
    external_url: str | None = None  # scheme://host[:port] written into queue URLs
    is_dev: bool = True  # reset allowed, unless callers have to say who they are
    is_auth_on: bool = False  # off: any credentials accepted, and none
    recreate_guard_ms: int = 0  # how long a deleted queue's name stays taken; 0: not at all
    partitions_default: int = 1
    # Known only once the admin listener has its port, hence possibly a callable.
    admin_url: AdminUrl = None
    kafka_url: str | None = None  # such as SASL_SSL://127.0.0.1:9092, for commands to find

    def __post_init__(self) -> None:
        assert 1 <= self.partitions_default <= PARTITIONS_MAX, "partitions_default out of range"


class Meter(Protocol):
    """Where the frontend counts. Once per request, and message tallies once per call: never a
    call per message."""

    def request(self, api: str, protocol: str, code: str, seconds: float) -> None:
        """``code`` is OK, or the code of the fault that was answered."""
        ...

    def sent(self, count: int, size_bytes: int) -> None: ...

    def received(self, count: int, size_bytes: int) -> None: ...

    def deleted(self, count: int) -> None: ...


@dataclass(slots=True)
class Context:
    backend: Backend
    catalog: Catalog  # queues only
    clock: Clock
    config: FrontendConfig
    meter: Meter
    entropy: Callable[[int], bytes]
    everything: Catalog  # streams as well
    shares: Shares
    identities: Identities = field(default_factory=Nobody)
    sealing: Sealing | None = None  # None: there is no key ring, and nothing is encrypted
    throttler: Throttler = field(default_factory=Throttler)
    quotas: TenantQuotas | None = None  # None: nothing is counted for tenants
    rotation: Rotation = field(default_factory=Rotation)
    scopes: dict[str, CredentialScope] = field(default_factory=dict)  # decode.py bounds it
    believed: dict[str, Caller] = field(default_factory=dict)  # authenticate.py bounds it
    purges: PurgeGuard = field(default_factory=PurgeGuard)
    reset_at_ms: int = 0  # deletions before this no longer guard their names
    signers: Signers = field(init=False)
    decisions: Decisions = field(init=False)
    passes: Passes = field(init=False)

    def __post_init__(self) -> None:
        self.signers = Signers(self.identities)
        self.decisions = Decisions(self.identities, postpones=True)
        self.passes = Passes(self.identities)
