"""A queue's settings as flags: one table row each, used by ``queue create``, ``set`` and ``show``.

A row has the flag that users type, the attribute of the SQS API, and the field of JSON output.
Values are checked here only for typing mistakes; the server decides what a queue accepts."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.cli import quantity
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import duration
from penstock.cli.session import Session
from penstock.model.units import size

Flags = Mapping[str, Any]

_SCOPES = {"queue": "queue", "group": "messageGroup"}
_LIMITS = {"queue": "perQueue", "group": "perMessageGroupId"}


class JsonText(click.ParamType[str]):
    """JSON text, or ``@FILE`` that holds it; an empty text removes the setting."""

    name = "json|@file"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        text = str(value)
        try:
            if text.startswith("@"):
                text = Path(text[1:]).read_text(encoding="utf-8").strip()
            if text:
                json.loads(text)
        except OSError as error:
            self.fail(f"cannot read '{text[1:]}': {error.strerror}", param, ctx)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)
        return text


class Setting(NamedTuple):
    flag: str
    attribute: str
    field: str  # its name in JSON output
    help: str
    kind: "click.ParamType[Any] | type[bool]" = click.STRING
    encode: Callable[[Any], str] = str
    decode: Callable[[str], Any] = str
    show: Callable[[Any], str] | None = None


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


def _seconds(flag: str, attribute: str, field: str, help_text: str, low: int, high: int) -> Setting:
    kind = quantity.seconds(low, high)
    return Setting(flag, attribute, field, help_text, kind, decode=int, show=duration)


def _choice(
    flag: str, attribute: str, field: str, help_text: str, choices: dict[str, str]
) -> Setting:
    back = {value: key for key, value in choices.items()}
    return Setting(
        flag,
        attribute,
        field,
        help_text,
        click.Choice(list(choices)),
        encode=choices.__getitem__,
        decode=lambda text: back.get(text, text),
    )


def _switch(flag: str, attribute: str, field: str, help_text: str) -> Setting:
    return Setting(
        flag, attribute, field, help_text, bool, encode=_bool_text, decode=lambda t: t == "true"
    )


SETTINGS = (
    _seconds("--delay", "DelaySeconds", "delay_s", "hide new messages this long", 0, 900),
    _seconds(
        "--visibility", "VisibilityTimeout", "visibility_s", "how long a receive leases", 0, 43_200
    ),
    _seconds(
        "--wait", "ReceiveMessageWaitTimeSeconds", "wait_s", "how long a receive waits", 0, 20
    ),
    _seconds("--retention", "MessageRetentionPeriod", "retention_s", "keep unread", 60, 1_209_600),
    Setting(
        "--max-bytes",
        "MaximumMessageSize",
        "message_bytes_max",
        "largest message, attributes included",
        quantity.bytes_of(1_024, 1_048_576),
        decode=int,
        show=size,
    ),
    _switch(
        "--content-dedup/--no-content-dedup",
        "ContentBasedDeduplication",
        "content_dedup",
        "FIFO: equal bodies are duplicates",
    ),
    _choice(
        "--dedup-scope",
        "DeduplicationScope",
        "dedup_scope",
        "FIFO: where an id is unique",
        _SCOPES,
    ),
    _choice(
        "--throughput", "FifoThroughputLimit", "throughput", "FIFO: what a rate applies to", _LIMITS
    ),
    Setting("--policy", "Policy", "policy", "access policy", JsonText(), decode=json.loads),
    Setting(
        "--redrive-allow",
        "RedriveAllowPolicy",
        "redrive_allow",
        "which queues may dead-letter here",
        JsonText(),
        decode=json.loads,
    ),
    Setting("--kms-key", "KmsMasterKeyId", "kms_key", "encrypt with this key"),
    _seconds(
        "--kms-reuse",
        "KmsDataKeyReusePeriodSeconds",
        "kms_reuse_s",
        "use a data key this long",
        60,
        86_400,
    ),
    _switch("--sse/--no-sse", "SqsManagedSseEnabled", "sse", "encrypt with the server's key"),
    Setting(
        "--fsync",
        "PenstockFsync",
        "fsync",
        "when an accepted message is on disk",
        click.Choice(["always", "interval", "never"]),
    ),
)


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add every flag above, and the two flags of a redrive policy."""
    options = [
        click.option(
            setting.flag, setting.field, type=setting.kind, default=None, help=setting.help
        )
        for setting in SETTINGS
    ]
    options += [
        click.option("--dead-letter", metavar="QUEUE", help="where failing messages go"),
        click.option(
            "--max-receives",
            type=click.IntRange(1, 1_000),
            help="receives before that [default 10]",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def attributes_of(session: Session, flags: Flags) -> dict[str, str]:
    """Return the attributes that were given as flags, in the form of the API."""
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
        raise Failure(
            "--max-receives stands alone",
            "it counts towards a dead-letter queue, and none was named",
            "add --dead-letter QUEUE",
            exit_code=ExitCode.USAGE,
        )
    return attributes


def tags_of(pairs: tuple[str, ...]) -> dict[str, str]:
    tags = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not key or not sign:
            raise click.BadParameter(f"'{pair}' is not KEY=VALUE", param_hint="--tag")
        tags[key] = value
    return tags


def described(name: str, url: str, attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return a queue's settings and counts with our field names instead of those of the SQS API."""
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
    redrive = redrive_of(attributes)
    if redrive is not None:
        item["dead_letter"], item["max_receives"] = redrive
    return item


def redrive_of(attributes: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the name of the dead-letter queue, and the receives before a message goes there."""
    text = attributes.get("RedrivePolicy")
    if not text:
        return None
    policy = json.loads(text)
    return policy["deadLetterTargetArn"].rpartition(":")[2], int(policy["maxReceiveCount"])
