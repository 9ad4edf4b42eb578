"""A Kafka frontend that wants to know who asks: a real broker with groups and transactions, real
identities in a real store, and clients that log in as bytes on connections of their own."""

import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
from scramp import ScramClient  # type: ignore[import-untyped]
from tests.unit.broker.stage import Stage, on_stage
from tests.unit.frontend_kafka.rig import CORRELATION_ID, CountingIds, Meter

from penstock.broker.coordination.groups import GroupHost
from penstock.broker.coordination.host import CoordinatorSetup
from penstock.broker.coordination.transactions import TransactionHost
from penstock.cursor.groups.settings import GroupSettings
from penstock.frontend.kafka.config import KafkaConfig
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.pipeline import KafkaFrontend
from penstock.frontend.limited_calls import streams_of
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.metadata.security.acl_rules import DelegationTokens
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.resource_configs import DynamicConfigs, ResourceConfigs
from penstock.model.file_slice import in_memory
from penstock.model.identity import ADMIN_POLICY, AccessKey, Tenant, User
from penstock.model.topic import Kind, Topic
from penstock.net.kafka.listener import KafkaConfig as ListenerConfig
from penstock.net.kafka.listener import KafkaConnection, KafkaListener
from penstock.node.keys.keyring import MasterKeyRing
from penstock.wire.kafka import scram
from penstock.wire.kafka.apis import APIS, LENGTH_BYTES, encode_request_frame, parse_response_header
from penstock.wire.kafka.generated.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from penstock.wire.kafka.generated.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

OWN = "000000000000"
OTHER = "222222222222"
REGION = "us-east-1"
HANDSHAKE, AUTHENTICATE = 17, 36
PLAIN, SHA_256, SHA_512 = "PLAIN", scram.SHA_256, scram.SHA_512
SEED = b"seed" * 8
PASSWORD = "correct horse"
SALT = b"salt" * 4
STRANGERS = ListenerConfig(login_frame_bytes_max=65_536)


@cache
def salted_password(mechanism: str, password: str) -> bytes:
    """Return what takes 10 ms to compute and is the same for most users of these tests."""
    return scram.salted_password(mechanism, password.encode(), salt=SALT, iterations=4_096)


def allow(*actions: str, resource: str = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": resource, **more}


def deny(*actions: str, resource: str = "*", **more: Any) -> dict[str, Any]:
    return {**allow(*actions, resource=resource, **more), "Effect": "Deny"}


def policy(*blocks: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(blocks)})


def topic_arn(name: str, account: str = OWN) -> str:
    return f"arn:aws:sqs:{REGION}:{account}:{name}"


def kafka_arn(what: str, account: str = OWN) -> str:
    """``group/g``, ``txn/t`` or ``cluster``."""
    return f"arn:penstock:kafka:{REGION}:{account}:{what}"


def codes(message: Any) -> Iterator[int]:
    """Every error code in an answer, of whatever part of it."""
    if isinstance(message, msgspec.Struct):
        for name in message.__struct_fields__:
            value = getattr(message, name)
            if name.endswith("error_code"):
                yield value
            else:
                yield from codes(value)
    elif isinstance(message, list | tuple):
        for each in message:
            yield from codes(each)


class Client:
    """One connection."""

    def __init__(self, house: "House", peer: str = "10.9.8.7", *, is_tls: bool = False) -> None:
        self.listener = KafkaListener(house.frontend.answer, config=STRANGERS)
        self.listener.is_tls = is_tls
        self.connection = cast(KafkaConnection, self.listener.make_connection())
        self.connection.peer = peer
        self.house = house
        self.client_id = "me"

    async def ask(self, key: int, request: Any, version: int | None = None) -> Any:
        api = APIS[key]
        version = api.version_max if version is None else version
        codec = api.codec()
        frame = encode_request_frame(
            api,
            version,
            correlation_id=CORRELATION_ID,
            client_id=self.client_id,
            body=codec.encode_request(request, version),
        )
        buffers = await self.house.frontend.answer(self.connection, frame[LENGTH_BYTES:])
        if buffers is None:
            return None
        data = b"".join(in_memory(buffers))
        correlation_id, at = parse_response_header(data, api.response_header_version(version))
        assert correlation_id == CORRELATION_ID
        return codec.decode_response(data, at, version)

    async def shake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        found = await self.ask(HANDSHAKE, SaslHandshakeRequest(mechanism), version)
        assert isinstance(found, SaslHandshakeResponse)
        return found

    async def token(self, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        found = await self.ask(AUTHENTICATE, SaslAuthenticateRequest(token), version)
        assert isinstance(found, SaslAuthenticateResponse)
        return found

    async def plain(self, user: str, password: str) -> SaslAuthenticateResponse:
        assert (await self.shake(PLAIN)).error_code == 0
        return await self.token(b"\0" + user.encode() + b"\0" + password.encode())

    async def scram(
        self,
        user: str,
        password: str = PASSWORD,
        mechanism: str = SHA_256,
        version: int = 2,
        *,
        is_token: bool = False,
    ) -> SaslAuthenticateResponse:
        """As another implementation of SCRAM does it, which checks the server as well."""
        shaken = await self.shake(mechanism)
        assert shaken.error_code == 0, shaken
        other = ScramClient([mechanism], user, password)
        begun = other.get_client_first()
        if is_token:  # an extension that the other implementation does not know
            begun += ",tokenauth=true"
            other.client_first_bare += ",tokenauth=true"
        first = await self.token(begun.encode(), version)
        if first.error_code:
            return first
        other.set_server_first(first.auth_bytes.decode())
        last = await self.token(other.get_client_final().encode(), version)
        if not last.error_code:
            other.set_server_final(last.auth_bytes.decode())
        return last

    def lose(self) -> None:
        """What is left of a connection that ends."""
        self.connection.notify_lost()


class House:
    def __init__(
        self,
        stage: Stage,
        identities: StoredIdentities,
        groups: GroupHost,
        transactions: TransactionHost,
        tokens: DelegationTokens,
        **config: Any,
    ) -> None:
        self.stage = stage
        self.tokens = tokens
        self.clock = stage.clock
        self.catalog = stage.catalog
        self.identities = identities
        self.meter = Meter()
        given = {"is_auth_on": True, "login_refusal_ms": 0, "auto_create": True, **config}
        self.context = KafkaContext(
            broker=stage.broker,
            anywhere=stage.broker,
            catalog=streams_of(stage.catalog),
            groups=groups,
            transactions=transactions,
            producer_ids=CountingIds(),
            clock=stage.clock,
            config=KafkaConfig(advertised=lambda: ("broker.test", 9092), **given),
            meter=self.meter,
            entropy=os.urandom,
            identities=identities,
            changes=identities,
            tokens=tokens,
            quotas=TenantQuotas(identities, stage.catalog),
            login_seed=SEED,
            # Not started: there is no other node to follow.
            dynamic=DynamicConfigs(ResourceConfigs(stage.catalog._store), account=OWN),
        )
        self.frontend = KafkaFrontend(self.context)

    # ── Who there is ─────────────────────────────────────────────────────────────────────────

    async def tenant(self, account: str = OWN, **fields: Any) -> Tenant:
        found = self.identities.tenant(account)
        made = Tenant(account, f"t{account}", 1, **fields)
        return found or await self.identities.create_tenant(made)

    async def user(
        self,
        name: str,
        *blocks: dict[str, Any],
        account: str = OWN,
        password: str | None = PASSWORD,
        mechanisms: tuple[str, ...] = (SHA_256, SHA_512),
        is_operator: bool = False,
    ) -> User:
        await self.tenant(account)
        policies = {"p": policy(*blocks)} if blocks else {}
        made = await self.identities.create_user(
            User(account, name, 1, is_operator=is_operator, policies=policies)
        )
        for mechanism in mechanisms if password is not None else ():
            await self.password(name, password or "", mechanism, account=account)
        return made

    async def password(
        self, name: str, password: str, mechanism: str = SHA_256, *, account: str = OWN
    ) -> None:
        salted = salted_password(mechanism, password)
        await self.identities.put_scram(
            scram.credential_of(
                account, name, mechanism, salted=salted, salt=SALT, iterations=4_096
            )
        )

    async def let(self, name: str, *blocks: dict[str, Any], account: str = OWN) -> None:
        """What the user may do from now on."""
        await self.identities.put_policy(account, name, "p", policy(*blocks))

    async def key(self, name: str, account: str = OWN) -> tuple[AccessKey, str]:
        made = await self.identities.create_key(account, name, now_ms=1)
        return made.key, made.secret

    async def root(self) -> Client:
        """One who may do everything, logged in."""
        if self.identities.user(OWN, "root") is None:
            await self.tenant()
            policies = {"admin": ADMIN_POLICY}
            await self.identities.create_user(
                User(OWN, "root", 1, is_operator=True, policies=policies)
            )
            await self.password("root", PASSWORD)
        return await self.client("root")

    async def client(self, name: str, *, account: str = OWN, peer: str = "10.9.8.7") -> Client:
        client = Client(self, peer)
        full = name if account == OWN else f"{account}/{name}"
        found = await client.scram(full)
        assert found.error_code == 0, found
        return client

    # ── What there is ────────────────────────────────────────────────────────────────────────

    async def topic(
        self, name: str = "t", *, account: str = OWN, kind: Kind = Kind.STREAM, partitions: int = 1
    ) -> Topic:
        return await self.catalog.create(
            Topic(
                topic_id=secrets.token_hex(16),
                account=account,
                region=REGION,
                name=name,
                kind=kind,
                partition_count=partitions,
                created_at_ms=self.clock.wall,
                modified_at_ms=self.clock.wall,
                receipt_key=b"k" * 32,
            )
        )


@asynccontextmanager
async def house_on(folder: Path, **config: Any) -> AsyncIterator[House]:
    async with on_stage(folder) as stage:
        store = await SqliteStore.open(folder / "identities.db")
        identities = StoredIdentities(store, MasterKeyRing(bytes(range(32))), entropy=os.urandom)
        await identities.start()
        tokens = DelegationTokens(store, b"secret of all nodes")
        await tokens.start()
        setup = CoordinatorSetup(
            broker=stage.broker,
            catalog=stage.catalog,
            clock=stage.clock,
            entropy=secrets.token_bytes,
            account=OWN,
            region=REGION,
        )
        groups = GroupHost(setup, settings=GroupSettings(initial_delay_ms=0))
        await groups.start()
        transactions = TransactionHost(setup, groups=groups, next_producer_id=CountingIds().next_id)
        await transactions.start()
        try:
            yield House(stage, identities, groups, transactions, tokens, **config)
        finally:
            await transactions.stop()
            await groups.stop()
            await tokens.stop()
            await identities.stop()
            await store.close()
