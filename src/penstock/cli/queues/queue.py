"""Commands of ``penstock queue``. They use the SQS API. Lists and live counts come from the admin
API, which reports all queues of a tenant in one reply."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from penstock.cli.clients.http import name_of
from penstock.cli.command import Noun, Session, confirm_name
from penstock.cli.queues.settings import (
    SETTINGS,
    attributes_of,
    described,
    settings_options,
    tags_of,
)
from penstock.cli.terminal.failure import Failure, NotFound
from penstock.cli.terminal.options import Texts, option, repeatable, yes_option
from penstock.cli.terminal.output import Json, columns, field, none_of, watch_options, watch_rows

_OURS = ("PenstockPartitions", "PenstockFsync")
_BACKLOG = ("visible", "in_flight", "delayed")
_COUNTERS = ("sent", "received", "acked", "dead_lettered")
_LIST_COLUMNS = columns(
    "name, visible#, in_flight# FLIGHT, delayed#, oldest_age_s# OLDEST, partitions# PARTS, "
    "log_bytes# DISK, dead_letter DEAD TO"
)
_STATS_COLUMNS = columns(
    "name, visible#, in_flight# FLIGHT, delayed#, oldest_age_s# OLDEST, sent#, received# RECV, "
    "acked# DELETED, dead_lettered# DEAD, waits#"
)
_RATE_COLUMNS = (
    *_STATS_COLUMNS[:5],
    *columns(
        "sent_per_s# SENT/s, received_per_s# RECV/s, acked_per_s# DEL/s, waits#",
        **dict.fromkeys(("sent_per_s", "received_per_s", "acked_per_s"), "{:,.1f}".format),
    ),
)
_tag_option = repeatable("--tag tags", "KEY=VALUE", "tag to add or change")
queue = Noun("queue", help="Create, list, show, set, delete, purge queues; show their counts.")


@queue.command()
@click.option("--fifo", is_flag=True, help="create a FIFO queue; adds '.fifo' to NAME if missing")
@option("--partitions", click.IntRange(min=1), "number of partitions [default: server setting]")
@_tag_option
@settings_options
def create(
    session: Session, name: str, fifo: bool, partitions: int | None, tags: Texts, **flags: Any
) -> None:
    """Create a queue. If the queue exists with the same settings, nothing changes."""
    if fifo and not name.endswith(".fifo"):
        name += ".fifo"
    tag_map = tags_of(tags)
    attributes = attributes_of(session, flags)
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    if partitions is not None:
        attributes["PenstockPartitions"] = str(partitions)
    request: Json = {"QueueName": name, "Attributes": attributes}
    if tag_map:
        request["tags"] = tag_map
    reply = session.sqs.call("CreateQueue", request, what=f"cannot create queue '{name}'")
    session.out.one({"name": name, "url": reply["QueueUrl"]})


@queue.command("list")
@click.argument("prefix", default="")
@option(
    "--sort",
    ["name", "backlog", "age"],
    "sort order; backlog and age list the highest first",
    default="name",
)
def list_queues(session: Session, prefix: str, sort: str) -> None:
    """List all queues, or the queues whose name starts with PREFIX."""
    if session.out.format_of("ndjson") == "name" and sort == "name":
        # Names alone come from the SQS API, so this works with any SQS server.
        session.out.many(({"name": name} for name in session.sqs.queue_names(prefix)), columns=())
        return
    found = sorted(rows(session, prefix), key=lambda row: str(row["name"]))
    if sort == "backlog":
        found.sort(key=lambda row: -sum(int(row.get(key) or 0) for key in _BACKLOG))
    elif sort == "age":
        found.sort(key=lambda row: -(row["oldest_age_s"] or 0))
    session.out.many(found, columns=_LIST_COLUMNS, empty=none_of("queues", prefix))


def rows(session: Session, prefix: str = "") -> list[Json]:
    made = []
    for item in session.admin.queues(prefix):
        counts = dict(item["stats"])
        counts.pop("oldest_sent_at_ms", None)
        age_ms = counts.pop("oldest_age_ms", None)
        target = item.get("dead_letter_target")
        row = {"name": item["name"], "kind": item["kind"], "partitions": item["partition_count"]}
        row |= {**counts, "oldest_age_s": None if age_ms is None else age_ms / 1_000}
        row["dead_letter"] = None if target is None else target.rpartition(":")[2]
        row["sources"] = [arn.rpartition(":")[2] for arn in item.get("sources", ())]
        made.append(row)
    return made


@queue.command()
def show(session: Session, name: str) -> None:
    """Show the settings, counts and tags of a queue."""
    attributes = session.sqs.attributes(name, ("All", *_OURS))
    item = described(name_of(name), session.sqs.queue_url(name), attributes)
    item["tags"] = session.sqs.tags(name, what=f"cannot show '{name}'")
    if item["kind"] == "fifo":
        with suppress(Failure):  # other SQS servers have no admin API
            blocked = session.admin.explanation(item["name"]).get("blocked")
            pairs = list(item.items())
            after = list(item).index("visible") + 1  # blocked messages count as visible
            item = dict([*pairs[:after], ("blocked", blocked), *pairs[after:]])
    forms = {setting.field: setting.show for setting in SETTINGS}
    shown = [each._replace(form=forms.get(each.key, each.form)) for each in map(field, item)]
    session.out.one(item, columns=shown)


@queue.command()
@click.option("--user", metavar="NAME", help="user who would receive messages [default: you]")
def explain(session: Session, name: str, user: str | None) -> None:
    """Explain why a receive from a queue returns no messages."""
    name = name_of(name)
    found = session.admin.explanation(name, user)
    state = "delivers messages" if found["is_delivering"] else "has no message to deliver now"
    reasons = (f"  {reason['text']}" for reason in found["reasons"])
    session.out.one(found, name="summary", lines=[f"{name} {state}", *reasons])


@queue.command("set")
@click.option("--no-dead-letter", is_flag=True, help="stop moving messages to a dead-letter queue")
@_tag_option
@repeatable("--untag untags", "KEY", "key of a tag to remove")
@settings_options
def set_settings(
    session: Session, name: str, no_dead_letter: bool, tags: Texts, untags: Texts, **flags: Any
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
@yes_option
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a queue and all its messages."""
    url = session.sqs.queue_url(name)  # before the prompt: fails if the queue does not exist
    confirm_name(name, verb="delete", is_sure=yes)
    session.sqs.call("DeleteQueue", {"QueueUrl": url}, what=f"cannot delete queue '{name}'")
    session.remark(f"deleted {name}")


@queue.command()
@yes_option
@click.option("--dry-run", is_flag=True, help="print the message counts, delete nothing")
def purge(session: Session, name: str, yes: bool, dry_run: bool) -> None:
    """Delete all messages of a queue, including messages in flight and delayed messages."""
    url = session.sqs.queue_url(name)
    if dry_run:
        item = described(name, url, session.sqs.attributes(name))
        counts = {key: item.get(key, 0) for key in _BACKLOG}
        session.out.one({"name": name, "would_remove": sum(counts.values()), **counts})
        return
    confirm_name(name, verb="purge", is_sure=yes)
    session.sqs.call("PurgeQueue", {"QueueUrl": url}, what=f"cannot purge queue '{name}'")
    session.remark(f"purged {name}")


@queue.command()
@watch_options("repeat until Ctrl-C, and show messages per second")
def stats(
    session: Session, names: Texts, watch: bool, interval: float, samples: int | None
) -> None:
    """Show the message counts of the named queues, or of all queues.

    With --watch a terminal shows a live table, and a pipe gets a JSON line per queue and sample."""
    if not watch:
        found = _rows_of(session, names)
        session.out.many(found, columns=_STATS_COLUMNS, empty="no queues")
        return
    before: dict[str, Json] = {}
    before_at_s = 0.0

    def sample() -> list[Json]:
        nonlocal before, before_at_s
        found = _rows_of(session, names)
        at_s = time.monotonic()
        rated = [with_rates(row, before.get(row["name"]), at_s - before_at_s) for row in found]
        before, before_at_s = {row["name"]: row for row in found}, at_s
        return rated

    watch_rows(session.out, sample, _RATE_COLUMNS, interval, samples)


def _rows_of(session: Session, names: Sequence[str]) -> list[Json]:
    found = {row["name"]: row for row in rows(session)}
    for name in names:
        if name not in found:
            raise NotFound(
                f"queue '{name}' does not exist",
                f"{len(found)} queues exist in this region",
                "list queues with `penstock queue list`",
            )
    return [found[name] for name in names or found]


def with_rates(now: Json, before: Json | None, elapsed_s: float) -> Json:
    """Return the row with a rate per second for each counter, computed from the previous sample. A
    rate is None in the first sample, or if the counter went backwards after a server restart."""
    row = dict(now)
    for counter in _COUNTERS:
        rate = None
        if before is not None and elapsed_s > 0 and counter in now and counter in before:
            difference = now[counter] - before[counter]
            rate = round(difference / elapsed_s, 1) if difference >= 0 else None
        row[f"{counter}_per_s"] = rate
    return row
