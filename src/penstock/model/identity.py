"""Tenants, users and keys, as they are stored in the metadata store.

A tenant has an account id of twelve digits, and its own queues, topics, groups and users. A user
belongs to one tenant and signs requests with access keys. Policies have AWS's format."""

from enum import StrEnum

import msgspec

ADMIN_POLICY = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'
)


class Rate(msgspec.Struct, frozen=True):
    """A rate limit: ``per_s`` per second on average, ``burst`` at once. Zero means no limit."""

    per_s: float = 0.0
    burst: float = 0.0


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rate limits for the requests and bytes of a tenant, a user or a queue."""

    tenant_requests: Rate | None = None  # None: not set, the default applies
    tenant_bytes: Rate = Rate()
    user_requests: Rate = Rate()
    queue_requests: Rate = Rate()
    operations: dict[str, Rate] = {}  # by action, for example "sqs:ReceiveMessage"


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits on how much a tenant may have. None means the default (``model/quotas.py``), and zero
    means no limit. Older versions of Penstock use zero for a quota that is not set."""

    queues_max: int | None = None
    stored_bytes_max: int | None = None
    connections_max: int | None = None
    waits_max: int | None = None  # parked long polls
    partitions_max: int | None = None
    groups_max: int | None = None
    offset_bytes_max: int | None = None
    transactional_ids_max: int | None = None
    subscriptions_max: int | None = None


class Tenant(msgspec.Struct, frozen=True, omit_defaults=True):
    account: str
    name: str
    created_at_ms: int
    is_suspended: bool = False  # all requests are rejected
    limits: Limits = Limits()
    quotas: Quotas = Quotas()


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    account: str
    name: str
    created_at_ms: int
    is_operator: bool = False  # may use the admin API for every tenant
    policies: dict[str, str] = {}  # JSON text by policy name


class KeyStatus(StrEnum):
    ACTIVE = "active"
    DISABLED = "disabled"


class AccessKey(msgspec.Struct, frozen=True, omit_defaults=True):
    key_id: str
    account: str
    user: str
    sealed_secret: bytes  # encrypted by the key ring; needed to check signatures
    created_at_ms: int
    status: KeyStatus = KeyStatus.ACTIVE
    last_used_at_ms: int = 0  # to the minute


class ScramCredential(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values with which a server checks a password without knowing it."""

    account: str
    user: str
    mechanism: str  # SCRAM-SHA-256 or SCRAM-SHA-512
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class DelegationToken(msgspec.Struct, frozen=True):
    """A token with which a Kafka client logs in as the owner. Its secret is derived from the id."""

    token_id: str
    account: str
    owner: str  # name of a user of the account
    owner_created_at_ms: int  # a later user of the same name does not get the token
    requester: str
    renewers: tuple[str, ...]  # other users who may renew and expire the token
    issued_at_ms: int
    expires_at_ms: int
    max_at_ms: int  # no renewal lasts beyond this time

    def is_expired(self, *, now_ms: int) -> bool:
        return now_ms > self.expires_at_ms


class Caller(msgspec.Struct, frozen=True):
    account: str
    user: str
    key_id: str = ""
    is_operator: bool = False
    is_trusted: bool = False  # authentication is off: policies are not checked
    service: str = ""  # not a user but a part of this server, under its AWS name
    source_arn: str = ""  # of a service: the resource for which it acts, of ``account``

    @property
    def arn(self) -> str:
        return f"arn:aws:iam::{self.account}:user/{self.user}"


class Circumstances(msgspec.Struct, frozen=True):
    source_ip: str = ""
    is_tls: bool = False
    now_ms: int = 0
