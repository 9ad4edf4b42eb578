"""``penstock storage``: inspects a data folder while the server is stopped.

With ``serve`` and ``doctor``, these are the only commands that use the disk of a server. They read
and never write: the server repairs what can be repaired when it starts. ``verify`` reads every byte
and exits with 8 if it finds damage. Message bodies are private data, so ``dump-segment`` shows them
only on request."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, moment, one_line
from penstock.cli.session import Noun, Session, pass_session
from penstock.model.units import size

if TYPE_CHECKING:
    from penstock.log.damage import Damage
    from penstock.log.survey import PartitionPlace, SegmentSurvey

ROWS_DEFAULT = 1_000
_BODY_WIDTH = 60

_PARTITION_COLUMNS = (
    Column("topic_id", "TOPIC ID"),
    Column("partition", "PARTITION", is_number=True),
    Column("start_offset", "START", is_number=True),
    Column("end_offset", "END", is_number=True),
    Column("segments", "SEGMENTS", is_number=True),
    Column("size_bytes", "SIZE", is_number=True, form=size),
    Column("clean_stop", "CLEAN STOP"),
    Column("damaged_ranges", "DAMAGED", is_number=True),
)
_FINDING_COLUMNS = (
    Column("kind", "FOUND"),
    Column("file", "FILE"),
    Column("position", "BYTE", is_number=True),
    Column("first_offset", "FROM OFFSET", is_number=True),
    Column("next_offset", "TO", is_number=True),
    Column("reason", "WHY"),
)
_RECORD_COLUMNS = (
    Column("offset", "OFFSET", is_number=True),
    Column("kind", "KIND"),
    Column("timestamp_ms", "TIME", form=moment),
    Column("epoch", "EPOCH", is_number=True),
    Column("codec", "CODEC"),
    Column("group", "GROUP"),
    Column("message_id", "MESSAGE ID"),
    Column("body_bytes", "BODY BYTES", is_number=True),
    Column("detail", "DETAIL"),
)
_BODY_COLUMN = Column("body", "BODY", form=lambda body: one_line(body, _BODY_WIDTH))


@click.group(cls=Noun)
def storage() -> None:
    """Inspect and verify a data folder, offline."""


@storage.command("inspect")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@pass_session
def inspect_folder(session: Session, folder: Path) -> None:
    """Show the partitions below a data folder."""
    from penstock.log.survey import glance

    rows = []
    for place in _partitions(folder):
        found = glance(place)
        rows.append(
            {
                "topic_id": place.topic_id,
                "partition": place.partition,
                "start_offset": found.start_offset,
                "end_offset": found.end_offset,
                "segments": found.segments,
                "size_bytes": found.size_bytes,
                "max_timestamp_ms": found.max_timestamp,
                "clean_stop": found.was_clean,
                "damaged_ranges": len(found.damage),
            }
        )
    empty = f"no partitions in {folder}"
    session.out.many(rows, columns=_PARTITION_COLUMNS, name="topic_id", empty=empty)


@storage.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@pass_session
def verify(session: Session, folder: Path) -> None:
    """Read every byte of every log below a data folder; exit code 8 when there is damage."""
    from penstock.cli.progress import Progress
    from penstock.log.survey import segments_of
    from penstock.node.folder import is_in_use

    places = _partitions(folder)
    is_running = is_in_use(folder)
    if is_running:
        session.remark(
            f"a server runs on {folder}: a batch that it is writing looks torn or damaged;"
            " verify again, or stop the server first"
        )
    total = sum(path.stat().st_size for place in places for path in place.folder.glob("*.log"))
    findings: list[dict[str, Any]] = []
    done_bytes = batches = 0
    with Progress("verify", total=total, is_quiet=session.settings.quiet) as progress:
        for place in places:
            for base_offset, next_base in segments_of(place):
                survey = _verify_segment(place, base_offset, next_base, findings)
                done_bytes += survey.bytes
                batches += survey.batches
                progress.update(done_bytes)
    is_damaged = any(finding["kind"] == "damage" for finding in findings)
    summary = {
        "healthy": not is_damaged,
        "server_running": is_running,
        "partitions": len(places),
        "bytes": done_bytes,
        "batches": batches,
        "findings": findings,
    }
    if session.out.is_table:
        if findings:
            session.out.many(findings, columns=_FINDING_COLUMNS)
            session.out.line("")
        verdict = "damage found" if is_damaged else "no damage"
        while_running = ", while a server runs" if is_running else ""
        session.out.line(
            f"{verdict}: {len(places)} partitions, {batches:,} batches, {size(done_bytes)} read"
            f"{while_running}"
        )
    else:
        session.out.one(summary, name="healthy")
    if is_damaged:
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def _verify_segment(
    place: "PartitionPlace", base_offset: int, next_base: int | None, findings: list[dict[str, Any]]
) -> "SegmentSurvey":
    from penstock.log.survey import lost_offsets, verify_checkpoints, verify_segment

    survey = verify_segment(place.folder, base_offset, next_base)
    findings += [_damage_row(survey.path, damage) for damage in survey.damage]
    findings += [_remark_row(survey.path, remark) for remark in survey.remarks]
    if next_base is None:
        findings += [_remark_row(place.folder, one) for one in verify_checkpoints(place.folder)]
        lost = lost_offsets(place.folder, survey.end_offset)
        if lost:
            findings.append(
                {
                    "kind": "damage",
                    "file": str(survey.path),
                    "position": survey.bytes,
                    "first_offset": survey.end_offset,
                    "next_offset": survey.end_offset + lost,
                    "reason": "records that were synced are gone",
                }
            )
    return survey


def _damage_row(path: Path, damage: "Damage") -> dict[str, Any]:
    return {
        "kind": "damage",
        "file": str(path),
        "position": damage.position,
        "size_bytes": damage.size_bytes,
        "first_offset": damage.first_offset,
        "next_offset": damage.next_offset,
        "reason": damage.reason,
    }


def _remark_row(path: Path, remark: str) -> dict[str, Any]:
    """Return a finding that the next start of the server repairs."""
    return {"kind": "remark", "file": str(path), "reason": remark}


@storage.command("dump-segment")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--bodies", is_flag=True, help="show message bodies and control values too")
@click.option("--from", "from_offset", metavar="OFFSET", default=0, help="first record to show")
@click.option(
    "-n", "--count", default=ROWS_DEFAULT, show_default=True, type=click.IntRange(min=1),
    help="records to show at most",
)  # fmt: skip
@pass_session
def dump_segment(session: Session, file: Path, bodies: bool, from_offset: int, count: int) -> None:
    """Show the records of one segment file."""
    from itertools import islice

    from penstock.log.layout import LOG_SUFFIX, base_offset_of

    if not file.is_file():
        raise Failure(
            f"no file {file}",
            fix="`penstock storage inspect DIR` shows where the logs are",
            exit_code=ExitCode.NOT_FOUND,
        )
    if file.suffix != LOG_SUFFIX or base_offset_of(file.name) is None:
        raise Failure(
            f"{file.name} is not a segment",
            "a segment is named by its first offset: twenty digits and .log",
            exit_code=ExitCode.USAGE,
        )
    rows = islice(_segment_rows(file, from_offset=from_offset, with_bodies=bodies), count)
    columns = (*_RECORD_COLUMNS, _BODY_COLUMN) if bodies else _RECORD_COLUMNS
    session.out.many(rows, columns=columns, name="offset", empty="no records from that offset on")


def _segment_rows(file: Path, *, from_offset: int, with_bodies: bool) -> Iterator[dict[str, Any]]:
    from penstock.log.damage import Damage
    from penstock.log.survey import iter_segment

    for part in iter_segment(file):
        if isinstance(part, Damage):
            yield {
                "offset": part.first_offset,
                "kind": "damage",
                "detail": f"{part.size_bytes} bytes at {part.position}: {part.reason}",
            }
        else:
            yield from _batch_rows(part, from_offset=from_offset, with_bodies=with_bodies)


def _batch_rows(batch: bytes, *, from_offset: int, with_bodies: bool) -> Iterator[dict[str, Any]]:
    from penstock.model.names import uuid_text
    from penstock.record.batch import parse_header
    from penstock.record.compression import Codec
    from penstock.record.control import iter_control
    from penstock.record.malformed import MalformedBatch
    from penstock.record.message import decode_batch

    header = parse_header(batch)
    if header.next_offset <= from_offset:
        return
    codec = Codec(header.codec).name.lower() if header.codec in list(Codec) else str(header.codec)
    shared = {"epoch": header.leader_epoch, "codec": codec}
    try:
        if header.is_control:
            for offset, kind, value in iter_control(batch):
                if offset >= from_offset:
                    row = {"offset": offset, "kind": f"control {kind}", **shared}
                    row |= {"timestamp_ms": header.max_timestamp, "body_bytes": len(value)}
                    yield row | ({"body": _text(value)} if with_bodies else {})
            return
        for record in decode_batch(batch, origin=b"", from_offset=from_offset):
            message = record.message
            what = "sealed" if message.is_sealed else "message"  # sealed bodies need a key
            row = {"offset": record.offset, "kind": what, **shared}
            row |= {
                "timestamp_ms": record.appended_at_ms,
                "group": message.group,
                "message_id": uuid_text(message.message_id),
                "body_bytes": len(message.body),
                "attributes": sorted(message.attributes or ()),
            }
            yield row | ({"body": _text(message.body)} if with_bodies else {})
    except MalformedBatch as error:
        yield {"offset": header.base_offset, "kind": "malformed", **shared, "detail": str(error)}


def _text(data: bytes) -> str:
    """Return text unchanged, other bytes in hex with a mark."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "hex:" + data.hex()


def _partitions(folder: Path) -> "list[PartitionPlace]":
    from penstock.log.survey import TOPICS_FOLDER, find_partitions

    if not folder.is_dir():
        raise Failure(
            f"no folder {folder}",
            fix="give the server's data folder, as in `penstock serve --data DIR`",
            exit_code=ExitCode.NOT_FOUND,
        )
    if not (folder / TOPICS_FOLDER).is_dir():
        raise Failure(
            f"{folder} is not a data folder",
            f"it has no folder named {TOPICS_FOLDER}",
            "give the server's data folder, as in `penstock serve --data DIR`",
            exit_code=ExitCode.NOT_FOUND,
        )
    return find_partitions(folder)
