"""Commands of ``penstock definitions``, which export and import queues and topics as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import click

from penstock.cli.command import Noun, Session
from penstock.cli.queues.settings import SETTINGS
from penstock.cli.terminal.failure import Misuse
from penstock.cli.terminal.output import Json, columns
from penstock.cli.topics import topic as kafka

_VERSION = 1
_FILE_BYTES_MAX = 64 * 1_048_576
_REDRIVE, _TARGET = "RedrivePolicy", "deadLetterTargetArn"
_PARTITIONS = "PenstockPartitions"
_FIXED = ("FifoQueue", _PARTITIONS)  # cannot be changed after a queue is created
_ATTRIBUTES = (*_FIXED, _REDRIVE, *(setting.attribute for setting in SETTINGS))
_OF_SHARES = ("VisibilityTimeout", "ReceiveMessageWaitTimeSeconds", "Policy", _REDRIVE)
_KINDS: Mapping[str, Mapping[str, type]] = {
    "queues": {"name": str, "attributes": dict, "tags": dict},
    "topics": {"name": str, "partitions": int, "configs": dict},
}
_COLUMNS = columns("kind, name, result")
definitions = Noun(
    "definitions", help="Export and import queues and topics as a JSON file, without messages."
)


@definitions.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
def export(session: Session, file: TextIO) -> None:
    """Write settings, tags and configs of all queues and topics to FILE, or to stdout.

    Dead-letter queues are written as names, so the file can be used in any account and region."""
    queues = [_queue(session, name) for name in sorted(session.sqs.queue_names())]
    topics = []
    for each in sorted(session.kafka.metadata().topics, key=lambda one: str(one.name)):
        configs = {} if each.is_internal else kafka.configs_of_topic(session, each.name)
        if each.is_internal or configs.get(kafka.QUEUE_CONFIG, ("false", 0))[0] == "true":
            continue
        own = {
            key: value for key, (value, source) in configs.items() if source == kafka.SOURCE_TOPIC
        }
        topics.append({"name": each.name, "partitions": len(each.partitions), "configs": own})
    found = {"version": _VERSION, "queues": queues, "topics": topics}
    file.write(json.dumps(found, indent=2, ensure_ascii=False, sort_keys=True) + "\n")
    session.remark(f"exported {len(queues)} queues and {len(topics)} topics")


def _queue(session: Session, name: str) -> Json:
    found = session.sqs.attributes(name, ("All", _PARTITIONS, "PenstockFsync"))
    attributes = {key: value for key, value in found.items() if key in _ATTRIBUTES}
    if ":" in name:  # a share, which reads a topic and stores no messages
        attributes = {k: v for k, v in attributes.items() if k in _OF_SHARES}
    if _REDRIVE in attributes:
        rule = json.loads(attributes[_REDRIVE])
        rule[_TARGET] = rule[_TARGET].rpartition(":")[2]
        attributes[_REDRIVE] = json.dumps(rule)
    tags = session.sqs.tags(name, what=f"cannot read '{name}'")
    return {"name": name, "attributes": attributes, "tags": tags}


@definitions.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="print the changes without making them")
def import_file(session: Session, file: str, dry_run: bool) -> None:
    """Create queues and topics from FILE, and change existing ones that differ from it.

    Nothing is deleted. Existing queues and topics keep their number of partitions."""
    found = _read(file)
    # A share, named topic:group, comes after the queue that it reads. Redrive policies come last.
    queues = sorted(found["queues"], key=lambda each: (":" in each["name"], each["name"]))
    existing = set(session.sqs.queue_names())
    rows = [_import_queue(session, each, existing, is_dry=dry_run) for each in queues]
    for each in queues:
        if _REDRIVE in each["attributes"] and not dry_run:
            rule = json.loads(each["attributes"][_REDRIVE])
            rule[_TARGET] = session.sqs.arn(rule[_TARGET])
            what = f"cannot set the dead-letter queue of '{each['name']}'"
            changed = {_REDRIVE: json.dumps(rule)}
            session.sqs.call_queue(
                each["name"], "SetQueueAttributes", what=what, Attributes=changed
            )
    known = {each.name for each in session.kafka.metadata().topics} if found["topics"] else set()
    rows += [_import_topic(session, each, known, is_dry=dry_run) for each in found["topics"]]
    session.out.many(rows, columns=_COLUMNS, empty="the file has no queues and no topics")


def _read(file: str) -> Json:
    with click.open_file(file, encoding="utf-8") as opened:
        text = opened.read(_FILE_BYTES_MAX)
    try:
        found = json.loads(text)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']} is not supported; it must be {_VERSION}")
        for part, kinds in _KINDS.items():
            for each in found[part]:
                for key, kind in kinds.items():
                    if not isinstance(each[key], kind):
                        what = f"'{key}' of {each.get('name')!r}"
                        raise ValueError(f"{what} is not of type {kind.__name__}")
    except (ValueError, KeyError, TypeError) as error:
        why = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise Misuse(
            f"{Path(file).name} is not a definitions file",
            why,
            "create such a file with `penstock definitions export`",
        ) from None
    return dict(found)


def _row(kind: str, name: str, result: str, *, is_dry: bool) -> Json:
    is_change = is_dry and result != "unchanged"
    return {"kind": kind, "name": name, "result": f"would be {result}" if is_change else result}


def _import_queue(session: Session, given: Json, existing: set[str], *, is_dry: bool) -> Json:
    name, sqs = given["name"], session.sqs
    attributes = {k: v for k, v in given["attributes"].items() if k != _REDRIVE}
    if name not in existing:
        request = {"QueueName": name, "Attributes": attributes, "tags": given["tags"]}
        if not is_dry:
            sqs.call("CreateQueue", request, what=f"cannot create queue '{name}'")
        return _row("queue", name, "created", is_dry=is_dry)
    now = _queue(session, name)
    changed = _differing(given["attributes"], now["attributes"])
    tags = _differing(given["tags"], now["tags"])
    wanted = {k: v for k, v in changed.items() if k not in (*_FIXED, _REDRIVE)}
    what = f"cannot change queue '{name}'"
    if wanted and not is_dry:
        sqs.call_queue(name, "SetQueueAttributes", what=what, Attributes=wanted)
    if tags and not is_dry:
        sqs.call_queue(name, "TagQueue", what=what, Tags=tags)
    return _row("queue", name, "changed" if changed or tags else "unchanged", is_dry=is_dry)


def _import_topic(session: Session, given: Json, existing: set[str], *, is_dry: bool) -> Json:
    name, configs = given["name"], given["configs"]
    if name not in existing:
        kafka.create_topic(session, name, given["partitions"], configs, is_dry=is_dry)
        return _row("topic", name, "created", is_dry=is_dry)
    now = {key: value for key, (value, _) in kafka.configs_of_topic(session, name).items()}
    changed = _differing(configs, now)
    if changed:
        what = f"cannot change topic '{name}'"
        kafka.alter_configs(session, name, changed, is_dry=is_dry, what=what)
    return _row("topic", name, "changed" if changed else "unchanged", is_dry=is_dry)


def _differing(wanted: Mapping[str, Any], now: Mapping[str, Any]) -> Json:
    return {key: value for key, value in wanted.items() if now.get(key) != value}
