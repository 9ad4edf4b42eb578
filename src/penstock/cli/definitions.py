"""``penstock definitions``: exports and imports queues and topics of an account as a JSON file,
without messages.

Everything goes through the SQS API and the Kafka protocol. Users, keys and messages are copied by
``penstock backup``."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column
from penstock.cli.queue_settings import SETTINGS
from penstock.cli.session import Noun, Session, pass_session
from penstock.cli.topic import (
    QUEUE_CONFIG,
    SOURCE_TOPIC,
    alter_configs,
    configs_of_topic,
    create_topic,
)

_VERSION = 1
_FILE_BYTES_MAX = 64 * 1_048_576
_REDRIVE, _TARGET = "RedrivePolicy", "deadLetterTargetArn"
_PARTITIONS = "PenstockPartitions"
_FIXED = ("FifoQueue", _PARTITIONS)  # cannot change after the creation of a queue
_ATTRIBUTES = (*_FIXED, _REDRIVE, *(setting.attribute for setting in SETTINGS))
_OF_SHARES = ("VisibilityTimeout", "ReceiveMessageWaitTimeSeconds", "Policy", _REDRIVE)
_COLUMNS = (Column("kind", "KIND"), Column("name", "NAME"), Column("result", "RESULT"))

Json = dict[str, Any]


@click.group(cls=Noun)
def definitions() -> None:
    """Queues and topics as a JSON file, without messages: export, import."""


@definitions.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@pass_session
def export(session: Session, file: TextIO) -> None:
    """Write settings, tags and configs of all queues and topics to FILE, or to stdout.

    A dead-letter queue is named by its name, so that the file fits any account and region.
    """
    queues = [_queue(session, name) for name in sorted(session.sqs.queue_names())]
    topics = list(_topics(session))
    found = {"version": _VERSION, "queues": queues, "topics": topics}
    file.write(json.dumps(found, indent=2, ensure_ascii=False, sort_keys=True) + "\n")
    session.remark(f"{len(queues)} queues and {len(topics)} topics")


def _queue(session: Session, name: str) -> Json:
    found = session.sqs.attributes(name, ("All", _PARTITIONS, "PenstockFsync"))
    attributes = {key: value for key, value in found.items() if key in _ATTRIBUTES}
    if ":" in name:  # a share: it stores no messages itself
        attributes = {k: v for k, v in attributes.items() if k in _OF_SHARES}
    if _REDRIVE in attributes:
        rule = json.loads(attributes[_REDRIVE])
        rule[_TARGET] = rule[_TARGET].rpartition(":")[2]
        attributes[_REDRIVE] = json.dumps(rule)
    url = session.sqs.queue_url(name)
    tags = session.sqs.call("ListQueueTags", {"QueueUrl": url}, what=f"cannot read '{name}'")
    return {"name": name, "attributes": attributes, "tags": tags.get("Tags", {})}


def _topics(session: Session) -> Iterator[Json]:
    found = [each for each in session.kafka.metadata().topics if not each.is_internal]
    for each in sorted(found, key=lambda one: str(one.name)):
        configs = configs_of_topic(session, each.name)
        if configs.get(QUEUE_CONFIG, ("false", 0))[0] != "true":
            set_here = {
                k: value for k, (value, source) in configs.items() if source == SOURCE_TOPIC
            }
            yield {"name": each.name, "partitions": len(each.partitions), "configs": set_here}


@definitions.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="say what would be created and changed, do nothing")
@pass_session
def import_file(session: Session, file: str, dry_run: bool) -> None:
    """Create queues and topics of FILE that do not exist, and set those that differ.

    Nothing is deleted. The number of partitions of what exists stays as it is.
    """
    found = _read(file)
    # A share, topic:group, comes after the queue that it reads; redrive policies come last.
    queues = sorted(found["queues"], key=lambda each: (":" in each["name"], each["name"]))
    existing = set(session.sqs.queue_names())
    rows = [_Import(session, each["name"], dry_run).queue(each, existing) for each in queues]
    for each in queues:
        if _REDRIVE in each["attributes"] and not dry_run:
            _set_dead_letter(session, each)
    known = {each.name for each in session.kafka.metadata().topics} if found["topics"] else set()
    rows += [_Import(session, each["name"], dry_run).topic(each, known) for each in found["topics"]]
    session.out.many(rows, columns=_COLUMNS, empty="the file has no queues and no topics")


def _read(file: str) -> Json:
    with click.open_file(file, encoding="utf-8") as opened:
        text = opened.read(_FILE_BYTES_MAX)
    try:
        found = json.loads(text)
        if found["version"] != _VERSION:
            raise ValueError(
                f"version {found['version']} is unknown; this program reads {_VERSION}"
            )
        for each in found["queues"]:
            _check(each, attributes=dict, tags=dict)
        for each in found["topics"]:
            _check(each, partitions=int, configs=dict)
    except (ValueError, KeyError, TypeError) as error:
        why = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise Failure(
            f"{Path(file).name} cannot be read as definitions",
            why,
            "write one with `penstock definitions export`",
            exit_code=ExitCode.USAGE,
        ) from None
    return dict(found)


def _check(each: Json, **kinds: type) -> None:
    for key, kind in {"name": str, **kinds}.items():
        if not isinstance(each[key], kind):
            raise ValueError(f"'{key}' of {each.get('name')!r} is not a {kind.__name__}")


def _set_dead_letter(session: Session, each: Json) -> None:
    rule = json.loads(each["attributes"][_REDRIVE])
    rule[_TARGET] = session.sqs.arn(rule[_TARGET])
    request = {
        "QueueUrl": session.sqs.queue_url(each["name"]),
        "Attributes": {_REDRIVE: json.dumps(rule)},
    }
    what = f"cannot set the dead-letter queue of '{each['name']}'"
    session.sqs.call("SetQueueAttributes", request, what=what)


class _Import:
    """The import of one queue or topic."""

    def __init__(self, session: Session, name: str, is_dry: bool) -> None:
        self._session = session
        self._name = name
        self._is_dry = is_dry

    def _row(self, kind: str, result: str) -> Json:
        would = {"created": "would be created", "changed": "would be changed"}
        shown = would.get(result, result) if self._is_dry else result
        return {"kind": kind, "name": self._name, "result": shown}

    def queue(self, given: Json, existing: set[str]) -> Json:
        attributes = {k: v for k, v in given["attributes"].items() if k != _REDRIVE}
        if self._name not in existing:
            request = {"QueueName": self._name, "Attributes": attributes, "tags": given["tags"]}
            if not self._is_dry:
                what = f"cannot create queue '{self._name}'"
                self._session.sqs.call("CreateQueue", request, what=what)
            return self._row("queue", "created")
        now = _queue(self._session, self._name)
        changed = _differing(given["attributes"], now["attributes"])
        tags = _differing(given["tags"], now["tags"])
        wanted = {k: v for k, v in changed.items() if k not in (*_FIXED, _REDRIVE)}
        if not self._is_dry:
            self._set(wanted, tags)
        return self._row("queue", "changed" if changed or tags else "unchanged")

    def _set(self, attributes: Json, tags: Json) -> None:
        url, what = self._session.sqs.queue_url(self._name), f"cannot change queue '{self._name}'"
        for action, key, value in (
            ("SetQueueAttributes", "Attributes", attributes),
            ("TagQueue", "Tags", tags),
        ):
            if value:
                self._session.sqs.call(action, {"QueueUrl": url, key: value}, what=what)

    def topic(self, given: Json, existing: set[str]) -> Json:
        if self._name not in existing:
            create_topic(
                self._session,
                self._name,
                given["partitions"],
                given["configs"],
                is_dry=self._is_dry,
            )
            return self._row("topic", "created")
        now = {k: value for k, (value, _) in configs_of_topic(self._session, self._name).items()}
        changed = _differing(given["configs"], now)
        if changed:
            what = f"cannot change topic '{self._name}'"
            alter_configs(self._session, self._name, changed, is_dry=self._is_dry, what=what)
        return self._row("topic", "changed" if changed else "unchanged")


def _differing(wanted: Mapping[str, Any], now: Mapping[str, Any]) -> Json:
    return {key: value for key, value in wanted.items() if now.get(key) != value}
