"""``penstock queue``: creates, shows, changes and deletes queues.

Changes go through the SQS API, so what works here works from any SQS client. Lists and live numbers
come from the admin API, which reports a whole account in one reply."""

from typing import Any

import click

from penstock.cli import quantity
from penstock.cli.output import Column, duration, field, none_of
from penstock.cli.queue_settings import (
    SETTINGS,
    attributes_of,
    described,
    settings_options,
    tags_of,
)
from penstock.cli.session import Noun, Session, Verb, confirm_name, pass_session
from penstock.model.units import size

_OURS = ("PenstockPartitions", "PenstockFsync")


@click.group(cls=Noun)
def queue() -> None:
    """Create, list, show, set, delete, purge queues; watch their numbers."""


@queue.command()
@click.argument("name")
@click.option("--fifo", is_flag=True, help="keep order within a message group; '.fifo' is added")
@click.option(
    "--partitions", type=click.IntRange(min=1), help="logs behind the queue [default: server's]"
)
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="can be given many times")
@settings_options
@pass_session
def create(
    session: Session,
    name: str,
    fifo: bool,
    partitions: int | None,
    tags: tuple[str, ...],
    **flags: Any,
) -> None:
    """Create a queue. Creating it again with the same settings changes nothing."""
    if fifo and not name.endswith(".fifo"):
        name += ".fifo"
    tag_map = tags_of(tags)
    attributes = attributes_of(session, flags)
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    if partitions is not None:
        attributes["PenstockPartitions"] = str(partitions)
    request: dict[str, Any] = {"QueueName": name, "Attributes": attributes}
    if tag_map:
        request["tags"] = tag_map
    reply = session.sqs.call("CreateQueue", request, what=f"cannot create queue '{name}'")
    session.out.one({"name": name, "url": reply["QueueUrl"]})


_LIST_COLUMNS = (
    Column("name", "NAME"),
    Column("visible", "VISIBLE", is_number=True),
    Column("in_flight", "FLIGHT", is_number=True),
    Column("delayed", "DELAYED", is_number=True),
    Column("oldest_age_s", "OLDEST", is_number=True, form=duration),
    Column("partitions", "PARTS", is_number=True),
    Column("log_bytes", "DISK", is_number=True, form=size),
    Column("dead_letter", "DEAD TO"),
)


@queue.command("list")
@click.argument("prefix", default="")
@click.option(
    "--sort",
    type=click.Choice(["name", "backlog", "age"]),
    default="name",
    show_default=True,
    help="backlog and age: the worst first",
)
@pass_session
def list_queues(session: Session, prefix: str, sort: str) -> None:
    """List queues, or those that start with PREFIX."""
    from penstock.cli import queue_numbers

    if session.out.format_of("ndjson") == "name" and sort == "name":
        # Names alone need no admin API, so this works against any SQS server.
        session.out.many(({"name": name} for name in session.sqs.queue_names(prefix)), columns=())
        return
    rows = queue_numbers.rows(session, prefix)
    sorted_rows = queue_numbers.sorted_rows(rows, sort)
    session.out.many(sorted_rows, columns=_LIST_COLUMNS, empty=none_of("queues", prefix))


@queue.command()
@click.argument("name")
@pass_session
def show(session: Session, name: str) -> None:
    """Show the settings, counts and tags of one queue."""
    from penstock.cli.client import name_of

    attributes = session.sqs.attributes(name, ("All", *_OURS))
    url = session.sqs.queue_url(name)
    item = described(name_of(name), url, attributes)
    reply = session.sqs.call("ListQueueTags", {"QueueUrl": url}, what=f"cannot show '{name}'")
    item["tags"] = reply.get("Tags", {})
    if item["kind"] == "fifo":
        item = _with_blocked(session, item)
    forms = {setting.field: setting.show for setting in SETTINGS}
    columns = [
        Column(each.key, each.title, form=forms.get(each.key, each.form))
        for each in map(field, item)
    ]
    session.out.one(item, columns=columns)


def _with_blocked(session: Session, item: dict[str, Any]) -> dict[str, Any]:
    """Insert ``blocked``, a part of ``visible``, after it. Other SQS servers have no admin API:
    then the number is left out."""
    from penstock.cli.failure import Failure

    try:
        blocked = session.admin.explanation(item["name"]).get("blocked")
    except Failure:
        return item
    shown: dict[str, Any] = {}
    for key, value in item.items():
        shown[key] = value
        if key == "visible":
            shown["blocked"] = blocked
    return shown


@queue.command()
@click.argument("name")
@click.option("--user", metavar="NAME", help="user whose policies and limits count [default: you]")
@pass_session
def explain(session: Session, name: str, user: str | None) -> None:
    """Say why a receive from a queue gets nothing."""
    from penstock.cli.client import name_of

    name = name_of(name)
    found = session.admin.explanation(name, user)
    if not session.out.is_table:
        session.out.one(found, name="summary")
        return
    state = "delivers messages" if found["is_delivering"] else "has nothing to deliver now"
    session.out.line(f"{name} {state}")
    for reason in found["reasons"]:
        session.out.line(f"  {reason['text']}")


@queue.command("set")
@click.argument("name")
@click.option("--no-dead-letter", is_flag=True, help="stop moving failing messages away")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="can be given many times")
@click.option("--untag", "untags", multiple=True, metavar="KEY", help="can be given many times")
@settings_options
@pass_session
def set_settings(
    session: Session,
    name: str,
    no_dead_letter: bool,
    tags: tuple[str, ...],
    untags: tuple[str, ...],
    **flags: Any,
) -> None:
    """Change settings or tags of a queue.

    What is not named stays as it is.
    """
    tag_map = tags_of(tags)
    attributes = attributes_of(session, flags)
    if no_dead_letter:
        if "RedrivePolicy" in attributes:
            raise click.UsageError("--dead-letter and --no-dead-letter exclude each other.")
        attributes["RedrivePolicy"] = ""
    if not (attributes or tag_map or untags):
        raise click.UsageError("Nothing to set: name at least one setting or tag.")
    url = session.sqs.queue_url(name)
    what = f"cannot change queue '{name}'"
    if attributes:
        request = {"QueueUrl": url, "Attributes": attributes}
        session.sqs.call("SetQueueAttributes", request, what=what)
    if tag_map:
        session.sqs.call("TagQueue", {"QueueUrl": url, "Tags": tag_map}, what=what)
    if untags:
        session.sqs.call("UntagQueue", {"QueueUrl": url, "TagKeys": list(untags)}, what=what)
    session.remark(f"changed {name}")


@queue.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a queue and every message in it."""
    url = session.sqs.queue_url(name)  # before the prompt: fails if there is no such queue
    confirm_name(name, verb="delete", is_sure=yes)
    session.sqs.call("DeleteQueue", {"QueueUrl": url}, what=f"cannot delete queue '{name}'")
    session.remark(f"deleted {name}")


@queue.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--dry-run", is_flag=True, help="say how many messages would go, remove none")
@pass_session
def purge(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Remove every message of a queue.

    Those in flight and delayed are removed too.
    """
    url = session.sqs.queue_url(name)
    if dry_run:
        item = described(name, url, session.sqs.attributes(name))
        counts = {key: item.get(key, 0) for key in ("visible", "in_flight", "delayed")}
        session.out.one({"name": name, "would_remove": sum(counts.values()), **counts})
        return
    confirm_name(name, verb="purge", is_sure=yes)
    session.sqs.call("PurgeQueue", {"QueueUrl": url}, what=f"cannot purge queue '{name}'")
    session.remark(f"purged {name}")


@queue.command(cls=Verb)
@click.argument("names", nargs=-1)
@click.option("--watch", is_flag=True, help="again and again, with rates, until Ctrl-C")
@click.option(
    "--interval",
    type=quantity.some_seconds(0.1, 3_600),
    default="2s",
    show_default=True,
    metavar="DURATION",
)
@click.option("--samples", type=click.IntRange(min=1), help="with --watch: stop after so many")
@pass_session
def stats(
    session: Session, names: tuple[str, ...], watch: bool, interval: float, samples: int | None
) -> None:
    """Show the numbers of some queues, or of all.

    With --watch a terminal shows a live table; anywhere else there is one JSON line for each
    queue and interval.
    """
    from penstock.cli import queue_numbers

    if not watch:
        rows = queue_numbers.rows_of(session, names)
        session.out.many(rows, columns=queue_numbers.COLUMNS, empty="no queues")
        return
    queue_numbers.watch(session, names, interval_s=interval, samples_max=samples)
