"""Identifiers and their grammar. NewTypes, so that the type checker keeps an offset from being a
count."""

import re
from typing import NewType
from urllib.parse import quote, unquote

AccountId = NewType("AccountId", str)  # twelve digits; who pays
Region = NewType("Region", str)  # a namespace of names, as AWS clients know it
TopicName = NewType("TopicName", str)  # what users see; never becomes a path
TopicId = NewType("TopicId", str)  # 32 hex digits, one per incarnation; names the folder on disk
Offset = NewType("Offset", int)  # position of a record in one partition's log

ACCOUNT_DEFAULT = AccountId("000000000000")
REGION_DEFAULT = Region("us-east-1")
FIFO_SUFFIX = ".fifo"
SHARE_MARK = ":"  # in no name of a topic or a queue
OFFSETS_TOPIC = "__consumer_offsets"  # a view of the offsets that groups have committed
# Streams that belong to the server itself, and those that clients look for on another one. An exact
# list: other tools have names of their own that begin like these.
INTERNAL_NAMES = frozenset(
    {
        "__groups",
        "__transactions",
        "__usage",
        "__audit",
        "__telemetry",
        OFFSETS_TOPIC,
        "__transaction_state",
    }
)
# Made and written by programs of operators, and by nobody else: what stands there moves partitions.
OPERATOR_NAMES = frozenset({"__plans"})

_ACCOUNT = re.compile(r"[0-9]{12}\Z")
_REGION = re.compile(r"[a-z0-9-]{1,32}\Z")
_SHARE_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}:[A-Za-z0-9._~%-]{1,262}\Z")
# Groups in which the Spark sink and the job `replay` keep what they have written: one row for each
# query (Spark names it by a UUID), and for each partition of a replay. Nobody reads with them.
_BOOKKEEPING_GROUP = re.compile(
    r"(?:spark-sink-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|penstock-replay\.[A-Za-z0-9_-]{1,64}\.[0-9]{1,10})\Z"
)
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")


def is_account(text: str) -> bool:
    return _ACCOUNT.match(text) is not None


def is_region(text: str) -> bool:
    return _REGION.match(text) is not None


def is_queue_name(text: str) -> bool:
    """1 to 80 of ``[A-Za-z0-9_-]``; a FIFO queue's ``.fifo`` counts towards the eighty."""
    if len(text) > 80:
        return False
    stem = text.removesuffix(FIFO_SUFFIX)
    return _QUEUE_NAME.match(stem) is not None


def is_share_name(text: str) -> bool:
    """``topic:group``, the group written as ``share_name`` writes it."""
    return _SHARE_NAME.match(text) is not None


def share_name(topic: str, group: str) -> str:
    """What the share of a group on a topic is called. A group id may hold anything: what would not
    read well in a URL is written as percent signs."""
    return f"{topic}{SHARE_MARK}{quote(group, safe='')}"


def split_share(name: str) -> tuple[str, str] | None:
    """Topic and group of a share's name; None for the name of anything else."""
    topic, mark, group = name.partition(SHARE_MARK)
    return (topic, unquote(group)) if mark else None


def is_bookkeeping_group(group: str) -> bool:
    """Whether a group is a notebook of the pipeline: its offsets are not positions of a reader, so
    it has no lag."""
    return _BOOKKEEPING_GROUP.match(group) is not None


def is_internal(name: str) -> bool:
    return name in INTERNAL_NAMES


def is_for_operators(name: str) -> bool:
    """Whether a topic of this name is for nobody else to see or to write."""
    return name in INTERNAL_NAMES or name in OPERATOR_NAMES


def queue_arn(account: str, region: str, name: str) -> str:
    return f"arn:{arn_partition(region)}:sqs:{region}:{account}:{name}"


def arn_partition(region: str) -> str:
    """AWS keeps some regions apart, and their resource names say so."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def uuid_text(raw: bytes) -> str:
    """Sixteen bytes in the 8-4-4-4-12 form that message ids have. Cheaper than uuid.UUID."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
