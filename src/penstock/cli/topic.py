"""``penstock topic``: creates, shows, changes and deletes topics.

Everything goes through the Kafka protocol, so what works here works from any Kafka client. A queue
is a topic too and is listed with the others. A topic that was created as a stream can be opened as
a queue; then SQS clients receive what Kafka clients produce."""

from collections.abc import Iterable, Mapping
from typing import Any

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, duration, none_of
from penstock.cli.session import Noun, Session, confirm_name, pass_session
from penstock.model.units import size

_CREATE_TOPICS, _DELETE_TOPICS, _DESCRIBE_CONFIGS = 19, 20, 32
_DESCRIBE_LOG_DIRS, _CREATE_PARTITIONS, _ALTER_CONFIGS = 35, 37, 44

_TOPIC_RESOURCE = 2
_SET, _UNSET = 0, 1
SOURCE_TOPIC = 1  # a config that was set on the topic itself
QUEUE_CONFIG = "penstock.queue"


@click.group(cls=Noun)
def topic() -> None:
    """Create, list, show, set, delete topics; add partitions; open one as a queue."""


def _configs_of(pairs: Iterable[str]) -> dict[str, str]:
    configs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"'{pair}' is not NAME=VALUE.")
        configs[name] = value
    return configs


@topic.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(min=1), help="logs behind the topic [default: server's]"
)
@click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE", help="can be given many times"
)
@click.option("--queue", "is_queue", is_flag=True, help="for SQS clients as well, from the start")
@click.option("--dry-run", is_flag=True, help="let the server check it, and create nothing")
@pass_session
def create(
    session: Session,
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    is_queue: bool,
    dry_run: bool,
) -> None:
    """Create a topic."""
    given = _configs_of(configs)
    if is_queue:
        given[QUEUE_CONFIG] = "true"
    count = create_topic(session, name, partitions or -1, given, is_dry=dry_run)
    session.out.one({"name": name, "partitions": count, "created": not dry_run})


def create_topic(
    session: Session, name: str, partitions: int, configs: Mapping[str, str], *, is_dry: bool
) -> int | None:
    """Return the number of partitions; ``partitions`` -1: the server's default."""
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated import create_topics as api

    asked = api.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[api.CreatableTopicConfig(key, value) for key, value in configs.items()],
    )
    request = api.CreateTopicsRequest(
        topics=[asked], timeout_ms=session.kafka.timeout_ms, validate_only=is_dry
    )
    (made,) = session.kafka.call(_CREATE_TOPICS, request).topics
    check(f"cannot create topic '{name}'", made.error_code, made.error_message)
    return made.num_partitions if made.num_partitions > 0 else max(partitions, 0) or None


_LIST_COLUMNS = (
    Column("name", "NAME"),
    Column("partitions", "PARTS", is_number=True),
    Column("records", "RECORDS", is_number=True),
    Column("log_bytes", "DISK", is_number=True, form=size),
)


@topic.command("list")
@click.argument("prefix", default="")
@click.option("--internal", is_flag=True, help="also those that the server keeps for itself")
@pass_session
def list_topics(session: Session, prefix: str, internal: bool) -> None:
    """List topics, or those that start with PREFIX.

    RECORDS counts offsets from the first to the next: for a queue that includes what its log
    keeps of leases and deletions.
    """
    found = [
        each
        for each in session.kafka.metadata().topics
        if each.name.startswith(prefix) and (internal or not each.is_internal)
    ]
    found.sort(key=lambda each: str(each.name))
    if session.out.format_of("ndjson") == "name":
        session.out.many(({"name": each.name} for each in found), columns=())
        return
    rows = _rows(session, {each.name: len(each.partitions) for each in found})
    session.out.many(rows, columns=_LIST_COLUMNS, empty=none_of("topics", prefix))


def _rows(session: Session, counts: Mapping[str, int]) -> list[dict[str, Any]]:
    from penstock.cli.kafka_client import EARLIEST, LATEST, Place

    places = [Place(name, number) for name, count in counts.items() for number in range(count)]
    what = "cannot count records"
    starts = session.kafka.offsets(dict.fromkeys(places, EARLIEST), what=what) if places else {}
    ends = session.kafka.offsets(dict.fromkeys(places, LATEST), what=what) if places else {}
    sizes = _log_bytes(session, counts)
    return [
        {
            "name": name,
            "partitions": count,
            "records": sum(
                ends[Place(name, number)] - starts[Place(name, number)] for number in range(count)
            ),
            "log_bytes": sum(sizes.get(Place(name, number), 0) for number in range(count)),
        }
        for name, count in counts.items()
    ]


def _log_bytes(session: Session, counts: Mapping[str, int]) -> dict[Any, int]:
    from penstock.cli.kafka_client import Place, check
    from penstock.wire.kafka.generated import describe_log_dirs as api

    if not counts:
        return {}
    asked = [api.DescribableLogDirTopic(name, range(count)) for name, count in counts.items()]
    sizes: dict[Place, int] = {}
    for node in session.kafka.nodes():
        request = api.DescribeLogDirsRequest(topics=asked)
        for folder in session.kafka.call(_DESCRIBE_LOG_DIRS, request, node=node).results:
            check("cannot ask for sizes on disk", folder.error_code)
            for each in folder.topics:
                for part in each.partitions:
                    place = Place(each.name, part.partition_index)
                    sizes[place] = sizes.get(place, 0) + part.partition_size
    return sizes


_PARTITION_COLUMNS = (
    Column("partition", "PART", is_number=True),
    Column("leader", "LEADER", is_number=True),
    Column("start", "START", is_number=True),
    Column("end", "END", is_number=True),
    Column("log_bytes", "DISK", is_number=True, form=size),
)


@topic.command()
@click.argument("name")
@click.option("--all", "is_all", is_flag=True, help="also configs that have their default")
@pass_session
def show(session: Session, name: str, is_all: bool) -> None:
    """Show partitions and configs of one topic."""
    from penstock.cli.kafka_client import EARLIEST, LATEST, Place

    what = f"cannot show topic '{name}'"
    found = session.kafka.topic(name, what=what)
    places = [Place(name, part.partition_index) for part in found.partitions]
    starts = session.kafka.offsets(dict.fromkeys(places, EARLIEST), what=what)
    ends = session.kafka.offsets(dict.fromkeys(places, LATEST), what=what)
    sizes = _log_bytes(session, {name: len(places)})
    configs = configs_of_topic(session, name)
    partitions = [
        {
            "partition": part.partition_index,
            "leader": part.leader_id,
            "start": starts[place],
            "end": ends[place],
            "log_bytes": sizes.get(place, 0),
        }
        for part, place in zip(found.partitions, places, strict=True)
    ]
    partitions.sort(key=lambda row: int(row["partition"]))
    shown = {
        key: value for key, (value, source) in configs.items() if is_all or source == SOURCE_TOPIC
    }
    item = {
        "name": name,
        "topic_id": found.topic_id.hex(),
        "is_queue": configs.get(QUEUE_CONFIG, ("false", 0))[0] == "true",
        "records": sum(ends[place] - starts[place] for place in places),
        "log_bytes": sum(sizes.get(place, 0) for place in places),
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
        session.out.line(f"{key}={value}{_in_words(key, value)}")
    session.out.line("")
    session.out.many(partitions, columns=_PARTITION_COLUMNS)


def _in_words(name: str, value: str | None) -> str:
    """Return a long time in milliseconds in readable units."""
    if name.endswith(".ms") and value is not None and value.isdigit() and int(value) >= 60_000:
        return f"  ({duration(int(value) / 1_000)})"
    return ""


def configs_of_topic(session: Session, name: str) -> dict[str, tuple[str | None, int]]:
    """Return value and source of each config."""
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated import describe_configs as api

    asked = api.DescribeConfigsResource(_TOPIC_RESOURCE, name, None)
    request = api.DescribeConfigsRequest(resources=[asked])
    (found,) = session.kafka.call(_DESCRIBE_CONFIGS, request).results
    check(f"cannot show the configs of '{name}'", found.error_code, found.error_message)
    return {each.name: (each.value, each.config_source) for each in found.configs}


@topic.command("set")
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--unset", "unsets", multiple=True, metavar="NAME", help="back to the default")
@click.option("--dry-run", is_flag=True, help="let the server check it, and change nothing")
@pass_session
def set_configs(
    session: Session, name: str, pairs: tuple[str, ...], unsets: tuple[str, ...], dry_run: bool
) -> None:
    """Change configs of a topic, such as retention.ms=86400000.

    What is not named stays as it is.
    """
    given = _configs_of(pairs)
    if not (given or unsets):
        raise click.UsageError("Nothing to set: name at least one config.")
    both = sorted(set(given) & set(unsets))
    if both:
        raise click.UsageError(f"'{both[0]}' is to be set and unset at once.")
    changes: dict[str, str | None] = {**given, **dict.fromkeys(unsets)}
    alter_configs(session, name, changes, is_dry=dry_run, what=f"cannot change topic '{name}'")
    session.remark(f"{'could change' if dry_run else 'changed'} {name}")


def alter_configs(
    session: Session, name: str, changes: Mapping[str, str | None], *, is_dry: bool, what: str
) -> None:
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated import incremental_alter_configs as api

    configs = [
        api.AlterableConfig(key, _UNSET if value is None else _SET, value)
        for key, value in changes.items()
    ]
    asked = api.AlterConfigsResource(_TOPIC_RESOURCE, name, configs)
    request = api.IncrementalAlterConfigsRequest(resources=[asked], validate_only=is_dry)
    (done,) = session.kafka.call(_ALTER_CONFIGS, request).responses
    check(what, done.error_code, done.error_message)


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a topic and every record in it."""
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated import delete_topics as api

    what = f"cannot delete topic '{name}'"
    session.kafka.topic(name, what=what)  # before the prompt: fails if there is no such topic
    confirm_name(name, verb="delete", is_sure=yes)
    request = api.DeleteTopicsRequest(topic_names=[name], timeout_ms=session.kafka.timeout_ms)
    (done,) = session.kafka.call(_DELETE_TOPICS, request, version_max=5).responses
    check(what, done.error_code, done.error_message)
    session.remark(f"deleted {name}")


@topic.command()
@click.argument("name")
@click.argument("count", type=click.IntRange(min=1))
@pass_session
def partitions(session: Session, name: str, count: int) -> None:
    """Give a topic COUNT partitions in all; there can only be more, never fewer.

    Records with a key may go to another partition from then on.
    """
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated import create_partitions as api

    what = f"cannot give topic '{name}' {count} partitions"
    before = len(session.kafka.topic(name, what=what).partitions)
    if before == count:
        session.remark(f"{name} has {count} partitions already")
        return
    if before > count:
        raise Failure(
            what,
            f"it has {before}, and a partition cannot be taken away",
            "create another topic and copy the records",
            exit_code=ExitCode.CONFLICT,
        )
    asked = api.CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = api.CreatePartitionsRequest(topics=[asked], timeout_ms=session.kafka.timeout_ms)
    (done,) = session.kafka.call(_CREATE_PARTITIONS, request).results
    check(what, done.error_code, done.error_message)
    session.out.one({"name": name, "partitions": count, "before": before})


@topic.command("open-as-queue")
@click.argument("name")
@pass_session
def open_as_queue(session: Session, name: str) -> None:
    """Let SQS clients receive a topic's records, each leased to one of them at a time.

    Kafka clients go on as before. A topic once opened stays a queue.
    """
    what = f"cannot open topic '{name}' as a queue"
    session.kafka.topic(name, what=what)
    alter_configs(session, name, {QUEUE_CONFIG: "true"}, is_dry=False, what=what)
    session.remark(f"{name} is a queue now: try `penstock message receive {name}`")
