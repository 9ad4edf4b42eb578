"""AlterClientQuotas: set or remove quotas of users, client ids and addresses. A tenant's quotas
apply to its own clients only. Tenants share addresses, so only operators set quotas of those."""

import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.frontend.kafka.client_quotas import (
    CLIENT_ID,
    FETCHED,
    IP,
    PRODUCED,
    USER,
    Entity,
    entity_text,
    sorted_entity,
)
from penstock.frontend.kafka.config_values import INT_MAX, is_address
from penstock.frontend.kafka.connection_rates import CREATION_RATE
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_cluster, check_operator
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.resources import check_level
from penstock.metadata.resource_configs import CLIENT_QUOTA, Resource
from penstock.model.errors import QuotaExceeded
from penstock.model.limits import CLIENT_NAME_CHARS_MAX, CLIENT_QUOTAS_PER_TENANT_MAX
from penstock.model.stream import LONG_MAX
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    OpData,
)

KEY = 49


class Key(NamedTuple):
    most: float
    is_whole: bool


_OF_CLIENTS: Final[Mapping[str, Key]] = MappingProxyType(
    {
        PRODUCED: Key(LONG_MAX, is_whole=True),
        FETCHED: Key(LONG_MAX, is_whole=True),
        "request_percentage": Key(math.inf, is_whole=False),
        "controller_mutation_rate": Key(math.inf, is_whole=False),
    }
)
_OF_ADDRESSES: Final[Mapping[str, Key]] = MappingProxyType(
    {CREATION_RATE: Key(INT_MAX, is_whole=True)}
)


async def run(
    context: KafkaContext, call: KafkaCall, asked: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    named = [(_entity(entry), entry) for entry in asked.entries]
    counts = Counter(entity for entity, _ in named)
    answers: dict[Entity, AlterClientQuotasResponseEntryData] = {}
    async for entity, entry in call.slices.each(named):
        code, message = ErrorCode.NONE, None
        try:
            if counts[entity] > 1:
                raise _invalid("The request names this entity more than once.")
            await _alter(context, call, entity, entry, is_dry=asked.validate_only)
        except REFUSALS as error:
            refusal = refusal_of(error)
            code, message = refusal.code, refusal.message
        parts = [AlterClientQuotasResponseEntityData(*part) for part in entity]
        answers[entity] = AlterClientQuotasResponseEntryData(code, message, parts)
    return AlterClientQuotasResponse(entries=tuple(answers.values()))


def _entity(entry: AlterClientQuotasRequestEntryData) -> Entity:
    return sorted_entity([(part.entity_type, part.entity_name) for part in entry.entity])


async def _alter(
    context: KafkaContext,
    call: KafkaCall,
    entity: Entity,
    entry: AlterClientQuotasRequestEntryData,
    *,
    is_dry: bool,
) -> None:
    """Raises Refusal and PenstockError."""
    check_cluster(context, call, Operation.ALTER_CONFIGS)
    account, keys = context.account, _OF_CLIENTS
    if IP in dict(entity):
        check_operator(context, call, Operation.ALTER_CONFIGS)
        account, keys = context.config.account, _OF_ADDRESSES
    _check_entity(entity)
    changes: dict[str, str | None] = {}
    for op in entry.ops:
        if op.key in changes:
            raise _invalid(f"The request names the quota {op.key[:100]} more than once.")
        changes[op.key] = None if op.remove else _read(op, keys)
    resource = Resource(account, CLIENT_QUOTA, entity_text(entity))
    stored = context.dynamic.stored
    before = stored.get(resource)
    changed = {key: text for key, text in changes.items() if before.get(key) != text}
    if changed and not is_dry:
        check_level(context)
        if not before:
            _check_room(context, account)
        await stored.change(resource, changed)


def _check_entity(entity: Entity) -> None:
    kinds = [kind for kind, _ in entity]
    if not entity:
        raise _invalid("The entity is empty: name a user, a client-id or an ip.")
    if len(set(kinds)) < len(kinds):
        raise _invalid(f"The entity has the same type more than once: {', '.join(kinds)[:100]}.")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unknown entity type {kind[:100]!r}: use user, client-id or ip.")
        if name == "":
            raise _invalid(f"The name of the {kind} is empty: send null for the default.")
        if name is not None and len(name) > CLIENT_NAME_CHARS_MAX:
            raise _invalid(
                f"The name of the {kind} has {len(name):,} characters; at most"
                f" {CLIENT_NAME_CHARS_MAX} are allowed."
            )
    if IP in kinds and len(kinds) > 1:
        raise _invalid("An ip cannot be combined with user or client-id.")
    address = dict(entity).get(IP)
    if address is not None and not is_address(address):
        raise _invalid(f"{address[:100]!r} is not an IP address.")


def _read(op: OpData, keys: Mapping[str, Key]) -> str:
    """The text to store. Raises Refusal."""
    key = keys.get(op.key)
    if key is None:
        raise _invalid(f"Unknown quota {op.key[:100]!r}: use one of {', '.join(keys)}.")
    if not 0 < op.value < math.inf:  # nor NaN
        raise _invalid(f"{op.key} must be greater than 0, not {op.value:g}.")
    if op.value > key.most:
        raise _invalid(f"{op.key} is at most {key.most}, not {op.value:g}.")
    if not key.is_whole:
        return repr(op.value)
    if op.value != int(op.value):
        raise _invalid(f"{op.key} is a whole number, not {op.value:g}.")
    return str(int(op.value))


def _check_room(context: KafkaContext, account: str) -> None:
    count = len(context.dynamic.stored.names(account, CLIENT_QUOTA))
    if account != context.config.account and count >= CLIENT_QUOTAS_PER_TENANT_MAX:
        raise QuotaExceeded(
            f"{count:,} of {CLIENT_QUOTAS_PER_TENANT_MAX:,} users and client ids have quotas of"
            " their own: remove some first."
        )


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


ACTION = KafkaAction(KEY, run)
