"""``penstock queue``: creates, shows, changes and deletes queues.

Changes go through the SQS API, so what works here works from any SQS client. Lists and live numbers
come from the admin API, which reports a whole account in one reply."""

from typing import Any

import click

from penstock.cli.clients.http import name_of
from penstock.cli.command import Noun, Session, confirm_name
from penstock.cli.queues import counts
from penstock.cli.queues.settings import (
    SETTINGS,
    attributes_of,
    described,
    settings_options,
    tags_of,
)
from penstock.cli.terminal.failure import Failure
from penstock.cli.terminal.output import Column, columns, field, none_of, watch_options, watch_rows

_OURS = ("PenstockPartitions", "PenstockFsync")


@click.group(cls=Noun)
def queue() -> None:
    """Create, list, show, set, delete, purge queues; show their counts."""


@queue.command()
@click.option("--fifo", is_flag=True, help="keep order within message groups; adds '.fifo' to NAME")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="number of partitions [default: server setting]",
)
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="tag to set; repeatable")
@settings_options
def create(
    session: Session,
    name: str,
    fifo: bool,
    partitions: int | None,
    tags: tuple[str, ...],
    **flags: Any,
) -> None:
    """Create a queue. If it exists with the same settings, nothing changes."""
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


_LIST_COLUMNS = columns(
    "name, visible#, in_flight# FLIGHT, delayed#, oldest_age_s# OLDEST, partitions# PARTS, "
    "log_bytes# DISK, dead_letter DEAD TO"
)


@queue.command("list")
@click.argument("prefix", default="")
@click.option(
    "--sort",
    type=click.Choice(["name", "backlog", "age"]),
    default="name",
    show_default=True,
    help="sort order; backlog and age: highest first",
)
def list_queues(session: Session, prefix: str, sort: str) -> None:
    """List all queues, or the queues whose name starts with PREFIX."""
    if session.out.format_of("ndjson") == "name" and sort == "name":
        # Names alone need no admin API, so this works against any SQS server.
        session.out.many(({"name": name} for name in session.sqs.queue_names(prefix)), columns=())
        return
    rows = counts.rows(session, prefix)
    sorted_rows = counts.sorted_rows(rows, sort)
    session.out.many(sorted_rows, columns=_LIST_COLUMNS, empty=none_of("queues", prefix))


@queue.command()
def show(session: Session, name: str) -> None:
    """Show the settings, counts and tags of a queue."""
    attributes = session.sqs.attributes(name, ("All", *_OURS))
    url = session.sqs.queue_url(name)
    item = described(name_of(name), url, attributes)
    item["tags"] = session.sqs.tags(name, what=f"cannot show '{name}'")
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
@click.option("--user", metavar="NAME", help="user who receives [default: you]")
def explain(session: Session, name: str, user: str | None) -> None:
    """Explain why a receive from a queue returns no messages."""
    name = name_of(name)
    found = session.admin.explanation(name, user)
    if not session.out.is_table:
        session.out.one(found, name="summary")
        return
    state = "delivers messages" if found["is_delivering"] else "has no message to deliver now"
    session.out.line(f"{name} {state}")
    for reason in found["reasons"]:
        session.out.line(f"  {reason['text']}")


@queue.command("set")
@click.option("--no-dead-letter", is_flag=True, help="remove the dead-letter queue")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="tag to set; repeatable")
@click.option("--untag", "untags", multiple=True, metavar="KEY", help="tag to remove; repeatable")
@settings_options
def set_settings(
    session: Session,
    name: str,
    no_dead_letter: bool,
    tags: tuple[str, ...],
    untags: tuple[str, ...],
    **flags: Any,
) -> None:
    """Change settings or tags of a queue. All other settings and tags stay unchanged."""
    tag_map = tags_of(tags)
    attributes = attributes_of(session, flags)
    if no_dead_letter:
        if "RedrivePolicy" in attributes:
            raise click.UsageError("--dead-letter and --no-dead-letter cannot be combined.")
        attributes["RedrivePolicy"] = ""
    if not (attributes or tag_map or untags):
        raise click.UsageError("Nothing to change: give at least one setting or tag.")
    what = f"cannot change queue '{name}'"
    if attributes:
        session.sqs.call_queue(name, "SetQueueAttributes", what=what, Attributes=attributes)
    if tag_map:
        session.sqs.call_queue(name, "TagQueue", what=what, Tags=tag_map)
    if untags:
        session.sqs.call_queue(name, "UntagQueue", what=what, TagKeys=list(untags))
    session.remark(f"changed {name}")


@queue.command()
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a queue and all its messages."""
    url = session.sqs.queue_url(name)  # before the prompt: fails if there is no such queue
    confirm_name(name, verb="delete", is_sure=yes)
    session.sqs.call("DeleteQueue", {"QueueUrl": url}, what=f"cannot delete queue '{name}'")
    session.remark(f"deleted {name}")


@queue.command()
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
@click.option("--dry-run", is_flag=True, help="print the number of messages, delete nothing")
def purge(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Delete all messages of a queue, also those in flight and delayed."""
    url = session.sqs.queue_url(name)
    if dry_run:
        item = described(name, url, session.sqs.attributes(name))
        counts = {key: item.get(key, 0) for key in ("visible", "in_flight", "delayed")}
        session.out.one({"name": name, "would_remove": sum(counts.values()), **counts})
        return
    confirm_name(name, verb="purge", is_sure=yes)
    session.sqs.call("PurgeQueue", {"QueueUrl": url}, what=f"cannot purge queue '{name}'")
    session.remark(f"purged {name}")


@queue.command()
@watch_options("refresh with rates until Ctrl-C")
def stats(
    session: Session, names: tuple[str, ...], watch: bool, interval: float, samples: int | None
) -> None:
    """Show the counts of the named queues, or of all.

    With --watch a terminal shows a live table; otherwise the output has one JSON line for each
    queue and interval.
    """
    if not watch:
        rows = counts.rows_of(session, names)
        session.out.many(rows, columns=counts.COLUMNS, empty="no queues")
        return
    sampler = counts.Sampler(session, names)
    watch_rows(session.out, sampler.take, counts.RATE_COLUMNS, interval, samples)
