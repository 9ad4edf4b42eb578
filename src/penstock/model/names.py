"""Names and ids with their allowed characters, and how the account is added to Kafka clients' ids.

Groups and transactions of all tenants are kept together, so inside the server their ids contain the
account of the tenant:

    tenant           id of the client      id in the server
    the node's own   orders                orders
    the node's own   123456789012/orders   000000000000/123456789012/orders
    another tenant   orders                123456789012/orders

The second line prevents the node's own tenant from using the ids of another tenant."""

import re
from collections.abc import Callable
from typing import Final, NewType
from urllib.parse import quote, unquote

AccountId = NewType("AccountId", str)  # twelve digits that identify a tenant
Region = NewType("Region", str)  # a namespace of names, as AWS clients know it
TopicName = NewType("TopicName", str)  # never becomes a path
TopicId = NewType("TopicId", str)  # 32 hex digits, new for each creation; the name of the folder
Offset = NewType("Offset", int)  # position of a record in one partition's log

ACCOUNT_DEFAULT = AccountId("000000000000")
REGION_DEFAULT = Region("us-east-1")
FIFO_SUFFIX = ".fifo"
SNS_PREFIX = "sns."  # the stream of the SNS topic `orders` is `sns.orders`
SNS_NAME_CHARS_MAX = 256
# Attributes of a record in an SNS topic that are not the client's own.
RESERVED_PREFIX = "penstock."
SUBJECT = RESERVED_PREFIX + "subject"
STRUCTURE = RESERVED_PREFIX + "structure"
SHARE_MARK = ":"  # not allowed in names of topics and queues
OFFSETS_TOPIC = "__consumer_offsets"  # a view of the offsets that groups have committed
# The server's own topics and Kafka's own topics. Other tools also use names with two underscores.
OUTBOX_TOPIC = "__outbox"  # messages to phones and others, of a server without a gateway
_FACTS = ("__usage", "__audit", "__telemetry", "__deliveries")
_OWN_NAMES = ("__groups", "__transactions", OUTBOX_TOPIC, *_FACTS)
INTERNAL_NAMES = frozenset((*_OWN_NAMES, OFFSETS_TOPIC, "__transaction_state"))
# Only operators may write these: their records move partitions.
OPERATOR_NAMES = frozenset({"__plans"})

_ACCOUNT_CHARS: Final = 12
PREFIX_CHARS: Final = _ACCOUNT_CHARS + 1  # length of the account and the slash in an id


def _matcher(pattern: str) -> Callable[[str], bool]:
    match = re.compile(pattern).match
    return lambda text: match(text) is not None


is_account = _matcher(r"[0-9]{12}\Z")
is_region = _matcher(r"[a-z0-9-]{1,32}\Z")
is_share_name = _matcher(r"[A-Za-z0-9._-]{1,249}:[A-Za-z0-9._~%-]{1,262}\Z")
# Groups in which the Spark sink and the job `replay` record what they have written. They have no
# consumers and no lag.
is_bookkeeping_group = _matcher(
    r"(?:spark-sink-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|penstock-replay\.[A-Za-z0-9_-]{1,64}\.[0-9]{1,10})\Z"
)
_is_plain_queue_name = _matcher(r"[A-Za-z0-9_-]{1,80}\Z")
_is_plain_sns_name = _matcher(r"[A-Za-z0-9_-]+\Z")


def is_queue_name(text: str) -> bool:
    """Return whether the text is a queue name: 1 to 80 characters, including ``.fifo``."""
    return len(text) <= 80 and _is_plain_queue_name(text.removesuffix(FIFO_SUFFIX))


def is_sns_name(text: str) -> bool:
    """Return whether the text is the name of an SNS topic, which may have the end ``.fifo``."""
    return len(text) <= SNS_NAME_CHARS_MAX and _is_plain_sns_name(text.removesuffix(FIFO_SUFFIX))


def share_name(topic: str, group: str) -> str:
    return f"{topic}{SHARE_MARK}{quote(group, safe='')}"


def split_share(name: str) -> tuple[str, str] | None:
    topic, mark, group = name.partition(SHARE_MARK)
    return (topic, unquote(group)) if mark else None


def is_internal(name: str) -> bool:
    return name in INTERNAL_NAMES


def is_for_operators(name: str) -> bool:
    return name in INTERNAL_NAMES or name in OPERATOR_NAMES


def queue_arn(account: str, region: str, name: str) -> str:
    return f"arn:{arn_partition(region)}:sqs:{region}:{account}:{name}"


def sns_arn(account: str, region: str, name: str) -> str:
    return f"arn:{arn_partition(region)}:sns:{region}:{account}:{name}"


def arn_partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def scoped_id(account: str, plain_id: str, *, own_account: str) -> str:
    """Return the id that the server uses for a client's group id or transactional id."""
    if not plain_id or (account == own_account and not _has_account(plain_id)):
        return plain_id
    return f"{account}/{plain_id}"


def split_scoped(scoped: str, *, own_account: str) -> tuple[str, str]:
    if not _has_account(scoped):
        return own_account, scoped
    return scoped[:_ACCOUNT_CHARS], scoped[PREFIX_CHARS:]


def _has_account(text: str) -> bool:
    return text[_ACCOUNT_CHARS:PREFIX_CHARS] == "/" and is_account(text[:_ACCOUNT_CHARS])
