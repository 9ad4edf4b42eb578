"""What every stage and action may use: broker, catalog, clock, randomness, meter and settings.

A ``Context`` lives as long as the frontend, a ``Call`` for one request. The only state here is
small and bounded and may be lost: caches, and guards of rules that the broker checks as well."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.access.decisions import Decisions
from penstock.frontend.encryption.sealing import Sealing
from penstock.frontend.facts.usage import Meter
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import Throttler
from penstock.frontend.sqs.grants import Grants
from penstock.frontend.sqs.signers import Signers
from penstock.model.calls import BrokerPort
from penstock.model.errors import PurgeInProgress
from penstock.model.identity import Caller
from penstock.model.limits import PURGE_INTERVAL_MS, QUEUE_PARTITIONS_MAX
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.model.ports import Catalog, Clock, Identities
from penstock.model.topic import Topic
from penstock.wire.aws.sigv4 import CredentialScope

PURGES_MAX: Final = 10_000  # queues to remember; for a forgotten one the broker still checks
ROTATIONS_MAX: Final = 10_000  # topics to remember; a forgotten one starts at partition 0 again

AdminUrl = str | Callable[[], str | None] | None


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    account: str = ACCOUNT_DEFAULT
    region: str = REGION_DEFAULT  # for requests whose signature and host name no region
    external_url: str | None = None  # scheme://host[:port] in queue URLs
    is_dev: bool = True  # allows a reset, if authentication is off
    is_auth_on: bool = False  # off: any credentials are accepted, or none
    recreate_guard_ms: int = 0  # how long the name of a deleted queue stays reserved; 0: not at all
    partitions_default: int = 1
    # A callable, because the admin listener may get its port later.
    admin_url: AdminUrl = None
    kafka_url: str | None = None  # such as SASL_SSL://127.0.0.1:9092, for CLI commands

    def __post_init__(self) -> None:
        is_valid = 1 <= self.partitions_default <= QUEUE_PARTITIONS_MAX
        assert is_valid, "partitions_default out of range"


class Rotation:
    """Round robin over the partitions of each standard queue, one step per request: a batch goes to
    one partition, so it needs one append and one sync."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        # By topic: with a single counter, a client that alternates between two queues would use
        # only every second partition of each.
        self._next: dict[str, int] = {}

    def next(self, topic: Topic) -> int:
        count = topic.partition_count
        if count == 1:
            return 0
        partition = self._next.get(topic.topic_id, 0)
        if partition == 0 and len(self._next) >= ROTATIONS_MAX:
            self._next.clear()
        self._next[topic.topic_id] = partition + 1 if partition + 1 < count else 0
        return partition


class PurgeGuard:
    """Allows one purge of a queue per minute. The broker checks the same, but only until the purge
    has ended."""

    __slots__ = ("_purged_at_ms",)

    def __init__(self) -> None:
        self._purged_at_ms: dict[str, int] = {}  # in the order of time

    def begin(self, topic_id: str, *, name: str, now_ms: int) -> None:
        """Start the minute of a purge; ``now_ms`` is monotonic. Raises PurgeInProgress."""
        entries = self._purged_at_ms
        purged_at_ms = entries.get(topic_id)
        if purged_at_ms is not None and now_ms - purged_at_ms < PURGE_INTERVAL_MS:
            raise PurgeInProgress(
                f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
            )
        entries.pop(topic_id, None)
        while entries:
            oldest, purged_at_ms = next(iter(entries.items()))
            if now_ms - purged_at_ms < PURGE_INTERVAL_MS and len(entries) < PURGES_MAX:
                break
            del entries[oldest]
        entries[topic_id] = now_ms

    def cancel(self, topic_id: str) -> None:
        """Forget a purge that failed."""
        self._purged_at_ms.pop(topic_id, None)

    def clear(self) -> None:
        self._purged_at_ms.clear()


@dataclass(slots=True)
class Context:
    broker: BrokerPort  # the brokers of all nodes
    catalog: Catalog  # queues only
    clock: Clock
    config: FrontendConfig
    meter: Meter
    entropy: Callable[[int], bytes]
    everything: Catalog  # streams as well
    identities: Identities
    sealing: Sealing | None = None  # None: no key ring, so no encryption
    throttler: Throttler = field(default_factory=Throttler)
    quotas: TenantQuotas | None = None
    rotation: Rotation = field(default_factory=Rotation)
    scopes: dict[str, CredentialScope] = field(default_factory=dict)  # bounded by decode.py
    trusted: dict[str, Caller] = field(default_factory=dict)  # bounded by authenticate.py
    purges: PurgeGuard = field(default_factory=PurgeGuard)
    reset_at_ms: int = 0  # names of queues deleted before are not reserved
    signers: Signers = field(init=False)
    decisions: Decisions = field(init=False)
    grants: Grants = field(init=False)

    def __post_init__(self) -> None:
        self.signers = Signers(self.identities)
        self.decisions = Decisions(self.identities, postpones=True)
        self.grants = Grants(self.identities)
