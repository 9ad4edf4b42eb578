"""Commands of ``penstock topic``, which use the Kafka protocol, and for SNS topics the SNS API. A
queue is also a topic, so these commands show queues too. A topic can be opened as a queue for SQS
clients. The records of the SNS topic ``orders`` are in the topic ``sns.orders``."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import click

from penstock.cli.clients.kafka import check, failing
from penstock.cli.command import Noun, Session, confirm_name
from penstock.cli.terminal.failure import Conflict, Misuse
from penstock.cli.terminal.options import (
    Texts,
    attribute_from_flag,
    option,
    repeatable,
    yes_option,
)
from penstock.cli.terminal.output import Column, Json, columns, duration, none_of
from penstock.model.units import size
from penstock.net.kafka_client.client import Place
from penstock.wire.kafka.generated import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    describe_log_dirs,
    incremental_alter_configs,
)

_TOPIC_RESOURCE = 2
_SET, _UNSET = 0, 1
SOURCE_TOPIC = 1  # a config that was set on the topic itself
QUEUE_CONFIG = "penstock.queue"

Extents = Mapping[Place, int]
_LIST_COLUMNS = columns("name, partitions# PARTS, records#, log_bytes# DISK")
_PARTITION_COLUMNS = columns("partition# PART, leader#, start#, end#, log_bytes# DISK")
topic = Noun(
    "topic",
    help="Create, list, show, set, delete topics; publish to SNS topics; add partitions; open a"
    " topic as a queue.",
)


def _configs_of(pairs: Iterable[str]) -> dict[str, str]:
    configs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"'{pair}' is not of the form NAME=VALUE.")
        configs[name] = value
    return configs


@topic.command()
@option("--partitions", click.IntRange(min=1), "number of partitions [default: server setting]")
@repeatable("--config configs", "NAME=VALUE", "topic config, such as retention.ms=86400000")
@click.option("--queue", "is_queue", is_flag=True, help="open the topic as a queue for SQS clients")
@click.option("--sns", "is_sns", is_flag=True, help="create an SNS topic")
@click.option("--fifo", is_flag=True, help="with --sns: FIFO topic; adds '.fifo' if missing")
@click.option("--dry-run", is_flag=True, help="check the request without creating the topic")
def create(
    session: Session,
    name: str,
    partitions: int | None,
    configs: Texts,
    is_queue: bool,
    is_sns: bool,
    fifo: bool,
    dry_run: bool,
) -> None:
    """Create a topic. If an SNS topic exists with the same attributes, nothing changes."""
    if is_sns:
        if configs or is_queue or dry_run:
            raise click.UsageError("--sns cannot be combined with --config, --queue, --dry-run.")
        _create_sns(session, name, partitions, is_fifo=fifo)
        return
    if fifo:
        raise click.UsageError("--fifo needs --sns.")
    given = _configs_of(configs)
    if is_queue:
        given[QUEUE_CONFIG] = "true"
    count = create_topic(session, name, partitions or -1, given, is_dry=dry_run)
    session.out.one({"name": name, "partitions": count, "created": not dry_run})


def _create_sns(session: Session, name: str, partitions: int | None, *, is_fifo: bool) -> None:
    if is_fifo and not name.endswith(".fifo"):
        name += ".fifo"
    attributes = {}
    if name.endswith(".fifo"):
        attributes["FifoTopic"] = "true"
    if partitions is not None:
        attributes["PenstockPartitions"] = str(partitions)
    fields = {"Name": name}
    for number, (key, value) in enumerate(attributes.items(), 1):
        fields[f"Attributes.entry.{number}.key"] = key
        fields[f"Attributes.entry.{number}.value"] = value
    reply = session.sns.call("CreateTopic", fields, what=f"cannot create SNS topic '{name}'")
    session.out.one({"name": name, "arn": reply["TopicArn"]})


@topic.command()
@option("--subject", "TEXT", "subject of the message")
@repeatable("-a --attribute attributes", "NAME[:TYPE]=VALUE", "message attribute")
@option("--group", "ID", "message group id (FIFO topics)")
@option("--dedup-id", "ID", "deduplication id of the message (FIFO topics)")
def publish(
    session: Session,
    name: str,
    message: str,
    subject: str | None,
    attributes: Texts,
    group: str | None,
    dedup_id: str | None,
) -> None:
    """Publish MESSAGE (- for stdin) to the SNS topic NAME, given by its name or ARN."""
    try:
        body = sys.stdin.read() if message == "-" else message
    except UnicodeDecodeError:
        raise Misuse("stdin is not UTF-8 text", fix="send it as base64 text") from None
    fields = {"TopicArn": session.sns.arn(name), "Message": body}
    given = {"Subject": subject, "MessageGroupId": group, "MessageDeduplicationId": dedup_id}
    fields |= {key: value for key, value in given.items() if value is not None}
    for number, text in enumerate(attributes, 1):
        key, value = attribute_from_flag(text)
        start = f"MessageAttributes.entry.{number}"
        fields |= {f"{start}.Name": key, **{f"{start}.Value.{k}": v for k, v in value.items()}}
    reply = session.sns.call("Publish", fields, what=f"cannot publish to '{name}'")
    shown = {"message_id": reply["MessageId"], "sequence_number": reply.get("SequenceNumber")}
    item = {key: value for key, value in shown.items() if value is not None}
    session.out.one(item, name="message_id")


def create_topic(
    session: Session, name: str, partitions: int, configs: Mapping[str, str], *, is_dry: bool
) -> int | None:
    """Create a topic and return its partition count. With ``partitions`` -1, the server decides."""
    wanted = create_topics.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[create_topics.CreatableTopicConfig(key, value) for key, value in configs.items()],
    )
    kafka = session.kafka
    more = {"timeout_ms": kafka.timeout_ms, "validate_only": is_dry}
    with failing(f"cannot create topic '{name}'"):
        (made,) = kafka.ask(create_topics, topics=[wanted], **more).topics
        check(made)
    return made.num_partitions if made.num_partitions > 0 else max(partitions, 0) or None


@topic.command("list")
@click.argument("prefix", default="")
@click.option("--internal", is_flag=True, help="also list internal topics of the server")
def list_topics(session: Session, prefix: str, internal: bool) -> None:
    """List all topics, or the topics whose name starts with PREFIX.

    RECORDS is the number of offsets in the log. In a queue, receives and deletions count too."""
    with failing("cannot list topics"):
        known = sorted(session.kafka.metadata().topics, key=lambda each: str(each.name))
    counts = {
        each.name: len(each.partitions)
        for each in known
        if each.name.startswith(prefix) and (internal or not each.is_internal)
    }
    if session.out.format_of("ndjson") == "name":
        session.out.many(({"name": name} for name in counts), columns=())
        return
    with failing("cannot count records"):
        starts, ends, sizes = _extents(session, counts)
    rows = []
    for name, count in counts.items():
        places = [Place(name, number) for number in range(count)]
        records = sum(ends[place] - starts[place] for place in places)
        log_bytes = sum(sizes[place] for place in places)
        rows.append({"name": name, "partitions": count, "records": records, "log_bytes": log_bytes})
    session.out.many(rows, columns=_LIST_COLUMNS, empty=none_of("topics", prefix))


def _extents(session: Session, counts: Mapping[str, int]) -> Sequence[Extents]:
    """Return the start offsets, end offsets and sizes on disk of all partitions of the topics."""
    places = [Place(name, number) for name, count in counts.items() for number in range(count)]
    starts, ends = session.kafka.bounds(places)
    sizes = Counter[Place]()
    if not counts:
        return starts, ends, sizes
    wanted = [
        describe_log_dirs.DescribableLogDirTopic(name, range(count))
        for name, count in counts.items()
    ]
    for node in session.kafka.nodes():
        for folder in session.kafka.ask(describe_log_dirs, node=node, topics=wanted).results:
            with failing("cannot read sizes on disk"):
                check(folder)
            for each in folder.topics:
                for part in each.partitions:
                    sizes[Place(each.name, part.partition_index)] += part.partition_size
    return starts, ends, sizes


@topic.command()
@click.option("--all", "is_all", is_flag=True, help="also show configs that have the default value")
def show(session: Session, name: str, is_all: bool) -> None:
    """Show the partitions and configs of a topic."""
    with failing(f"cannot show topic '{name}'"):
        found = session.kafka.topic(name)
        starts, ends, sizes = _extents(session, {name: len(found.partitions)})
    configs = configs_of_topic(session, name)
    partitions = []
    for part in sorted(found.partitions, key=lambda part: int(part.partition_index)):
        place = Place(name, part.partition_index)
        row = {"partition": part.partition_index, "leader": part.leader_id}
        row |= {"start": starts[place], "end": ends[place], "log_bytes": sizes[place]}
        partitions.append(row)
    shown = {
        key: value for key, (value, source) in configs.items() if is_all or source == SOURCE_TOPIC
    }
    item = {
        "name": name,
        "topic_id": found.topic_id.hex(),
        "is_queue": configs.get(QUEUE_CONFIG, ("false", 0))[0] == "true",
        "records": sum(ends.values()) - sum(starts.values()),
        "log_bytes": sum(sizes.values()),
        "configs": shown,
    }
    if not session.out.is_table:
        session.out.one({**item, "partitions": partitions})
        return
    columns = [
        Column(key, key.replace("_", " "), form=size if key == "log_bytes" else None)
        for key in item
        if key != "configs"
    ]
    session.out.one(item, columns=columns)
    for key, value in shown.items():
        is_long = key.endswith(".ms") and value and value.isdigit() and int(value) >= 60_000
        words = f"  ({duration(int(value or 0) / 1_000)})" if is_long else ""
        session.out.line(f"{key}={value}{words}")
    session.out.line("")
    session.out.many(partitions, columns=_PARTITION_COLUMNS)


def configs_of_topic(session: Session, name: str) -> dict[str, tuple[str | None, int]]:
    wanted = describe_configs.DescribeConfigsResource(_TOPIC_RESOURCE, name, None)
    with failing(f"cannot show the configs of '{name}'"):
        (found,) = session.kafka.ask(describe_configs, resources=[wanted]).results
        check(found)
    return {each.name: (each.value, each.config_source) for each in found.configs}


@topic.command("set")
@click.argument("pairs", nargs=-1, metavar="[NAME=VALUE]...")
@repeatable("--unset unsets", "NAME", "config to reset to its default")
@click.option("--dry-run", is_flag=True, help="check the request without changing the topic")
def set_configs(session: Session, name: str, pairs: Texts, unsets: Texts, dry_run: bool) -> None:
    """Change configs of a topic, such as retention.ms=86400000. Other configs stay unchanged."""
    given = _configs_of(pairs)
    if not (given or unsets):
        raise click.UsageError("Nothing to change: give at least one config.")
    both = sorted(set(given) & set(unsets))
    if both:
        raise click.UsageError(f"'{both[0]}' cannot be set and unset in one command.")
    changes: dict[str, str | None] = {**given, **dict.fromkeys(unsets)}
    alter_configs(session, name, changes, is_dry=dry_run, what=f"cannot change topic '{name}'")
    session.remark(f"{'would change' if dry_run else 'changed'} {name}")


def alter_configs(
    session: Session, name: str, changes: Mapping[str, str | None], *, is_dry: bool, what: str
) -> None:
    configs = [
        incremental_alter_configs.AlterableConfig(key, _UNSET if value is None else _SET, value)
        for key, value in changes.items()
    ]
    wanted = incremental_alter_configs.AlterConfigsResource(_TOPIC_RESOURCE, name, configs)
    request: Json = {"resources": [wanted], "validate_only": is_dry}
    with failing(what):
        (done,) = session.kafka.ask(incremental_alter_configs, **request).responses
        check(done)


@topic.command()
@yes_option
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a topic and all its records."""
    kafka = session.kafka
    with failing(f"cannot delete topic '{name}'"):
        kafka.topic(name)  # before the prompt: fails if the topic does not exist
        confirm_name(name, verb="delete", is_sure=yes)
        request: Json = {"topic_names": [name], "timeout_ms": kafka.timeout_ms}
        (done,) = kafka.ask(delete_topics, most=5, **request).responses
        check(done)
    session.remark(f"deleted {name}")


@topic.command()
@click.argument("count", type=click.IntRange(min=1))
def partitions(session: Session, name: str, count: int) -> None:
    """Raise the number of partitions of a topic to COUNT. The number cannot be lowered.

    New records may go to another partition than earlier records with the same key."""
    what = f"cannot give topic '{name}' {count} partitions"
    kafka = session.kafka
    with failing(what):
        before = len(kafka.topic(name).partitions)
    if before == count:
        session.remark(f"{name} has {count} partitions already")
        return
    if before > count:
        raise Conflict(
            what,
            f"the topic has {before} partitions, and partitions cannot be removed",
            "create another topic and copy the records to it",
        )
    wanted = create_partitions.CreatePartitionsTopic(name=name, count=count, assignments=None)
    with failing(what):
        request: Json = {"topics": [wanted], "timeout_ms": kafka.timeout_ms}
        (done,) = kafka.ask(create_partitions, **request).results
        check(done)
    session.out.one({"name": name, "partitions": count, "before": before})


@topic.command("open-as-queue")
def open_as_queue(session: Session, name: str) -> None:
    """Open a topic as a queue, so that SQS clients can receive its records.

    Kafka clients are not affected. This cannot be undone."""
    what = f"cannot open topic '{name}' as a queue"
    with failing(what):
        session.kafka.topic(name)
    alter_configs(session, name, {QUEUE_CONFIG: "true"}, is_dry=False, what=what)
    session.remark(f"{name} is a queue now: try `penstock message receive {name}`")
