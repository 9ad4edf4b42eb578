"""The queue attributes that are options of ``queue create`` and ``queue set``, in one table.
Options are checked here only for typing mistakes; the server decides what a queue accepts."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.cli.command import Session
from penstock.cli.terminal.failure import Misuse
from penstock.cli.terminal.options import Parsed, Texts, bytes_of, option, seconds, several
from penstock.cli.terminal.output import duration
from penstock.model.units import size

Flags = Mapping[str, Any]

_SCOPES = {"queue": "queue", "group": "messageGroup"}
_LIMITS = {"queue": "perQueue", "group": "perMessageGroupId"}
_FSYNC = {name: name for name in ("always", "interval", "never")}


def _json_text(text: str) -> str:
    """Return JSON that was given as text or as ``@FILE``. An empty text removes the setting."""
    try:
        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8").strip()
        if text:
            json.loads(text)
    except OSError as error:
        raise ValueError(f"cannot read '{text[1:]}': {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"the value is not JSON: {error}") from None
    return text


class Setting(NamedTuple):
    flag: str
    attribute: str
    help: str
    field: str  # name of the setting in JSON output
    kind: "click.ParamType[Any] | type[bool]" = click.STRING
    encode: Callable[[Any], str] = str
    decode: Callable[[str], Any] = str
    show: Callable[[Any], str] | None = None


def _seconds(name: str, attribute: str, text: str, low: int, high: int) -> Setting:
    field, kind = f"{name.replace('-', '_')}_s", seconds(low, high)
    return Setting(f"--{name}", attribute, text, field, kind, decode=int, show=duration)


def _choice(name: str, attribute: str, text: str, choices: Mapping[str, str]) -> Setting:
    field, kind = name.replace("-", "_"), click.Choice(list(choices))
    back = {value: key for key, value in choices.items()}
    encode, decode = choices.__getitem__, lambda value: back.get(value, value)
    return Setting(f"--{name}", attribute, text, field, kind, encode, decode)


def _switch(name: str, attribute: str, text: str) -> Setting:
    flag, field = f"--{name}/--no-{name}", name.replace("-", "_")
    return Setting(flag, attribute, text, field, bool, json.dumps, "true".__eq__)


def _json(name: str, attribute: str, text: str) -> Setting:
    field = name.replace("-", "_")
    return Setting(
        f"--{name}", attribute, text, field, Parsed("json|@file", _json_text), decode=json.loads
    )


SETTINGS = (
    _seconds("delay", "DelaySeconds", "delivery delay of new messages", 0, 900),
    _seconds("visibility", "VisibilityTimeout", "visibility timeout of messages", 0, 43_200),
    _seconds("wait", "ReceiveMessageWaitTimeSeconds", "default long-poll time of receives", 0, 20),
    _seconds("retention", "MessageRetentionPeriod", "message retention period", 60, 1_209_600),
    Setting(
        "--max-bytes",
        "MaximumMessageSize",
        "maximum message size, attributes included",
        "message_bytes_max",
        bytes_of(1_024, 1_048_576),
        decode=int,
        show=size,
    ),
    _switch("content-dedup", "ContentBasedDeduplication", "deduplicate by body (FIFO queues)"),
    _choice("dedup-scope", "DeduplicationScope", "scope of deduplication (FIFO queues)", _SCOPES),
    _choice("throughput", "FifoThroughputLimit", "scope of the rate limit (FIFO queues)", _LIMITS),
    _json("policy", "Policy", "access policy of the queue"),
    _json("redrive-allow", "RedriveAllowPolicy", "redrive allow policy of a dead-letter queue"),
    Setting("--kms-key", "KmsMasterKeyId", "id of the KMS key that encrypts messages", "kms_key"),
    _seconds("kms-reuse", "KmsDataKeyReusePeriodSeconds", "KMS data key reuse period", 60, 86_400),
    _switch("sse", "SqsManagedSseEnabled", "encrypt messages with the server's key"),
    _choice("fsync", "PenstockFsync", "when accepted messages are synced to disk", _FSYNC),
)


settings_options = several(
    *(
        click.option(row.flag, row.field, type=row.kind, default=None, help=row.help)
        for row in SETTINGS
    ),
    click.option("--dead-letter", metavar="QUEUE", help="name of the dead-letter queue"),
    option(
        "--max-receives",
        click.IntRange(1, 1_000),
        "number of receives before a message moves to the dead-letter queue [default 10]",
    ),
)


def attributes_of(session: Session, flags: Flags) -> dict[str, str]:
    attributes = {
        setting.attribute: setting.encode(flags[setting.field])
        for setting in SETTINGS
        if flags[setting.field] is not None
    }
    target, receives_max = flags["dead_letter"], flags["max_receives"]
    if target is not None:
        attributes["RedrivePolicy"] = json.dumps(
            {"deadLetterTargetArn": session.sqs.arn(target), "maxReceiveCount": receives_max or 10}
        )
    elif receives_max is not None:
        raise Misuse(
            "--max-receives needs a dead-letter queue",
            "--dead-letter is missing",
            "add --dead-letter QUEUE",
        )
    return attributes


def tags_of(pairs: Texts) -> dict[str, str]:
    tags = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not key or not sign:
            raise click.BadParameter(f"'{pair}' is not of the form KEY=VALUE", param_hint="--tag")
        tags[key] = value
    return tags


def described(name: str, url: str, attributes: Mapping[str, str]) -> dict[str, Any]:
    counts = {
        "visible": "ApproximateNumberOfMessages",
        "in_flight": "ApproximateNumberOfMessagesNotVisible",
        "delayed": "ApproximateNumberOfMessagesDelayed",
        "created_at_s": "CreatedTimestamp",
        "modified_at_s": "LastModifiedTimestamp",
        "partitions": "PenstockPartitions",
    }
    item: dict[str, Any] = {
        "name": name,
        "kind": "fifo" if attributes.get("FifoQueue") == "true" else "standard",
        "url": url,
        "arn": attributes.get("QueueArn"),
    }
    for field, attribute in counts.items():
        if attribute in attributes:
            item[field] = int(attributes[attribute])
    for setting in SETTINGS:
        if setting.attribute in attributes:
            item[setting.field] = setting.decode(attributes[setting.attribute])
    if redrive := attributes.get("RedrivePolicy"):
        policy = json.loads(redrive)
        item["dead_letter"] = policy["deadLetterTargetArn"].rpartition(":")[2]
        item["max_receives"] = int(policy["maxReceiveCount"])
    return item
