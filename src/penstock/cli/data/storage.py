"""Commands of ``penstock storage``, which inspect a data folder while the server is stopped. They
never write: the server repairs the folder when it starts. Message bodies are private data, so
``dump-segment`` prints them only with ``--bodies``."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click
import msgspec

from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import ExitCode, Misuse, NotFound
from penstock.cli.terminal.options import count_option
from penstock.cli.terminal.output import Json, columns, moment, one_line, progress_bar
from penstock.log import inspection
from penstock.log.storage.checkpoint import Damage
from penstock.log.storage.files import LOG_SUFFIX, base_offset_of
from penstock.model.names import uuid_text
from penstock.model.units import size
from penstock.node.process.folder import is_in_use
from penstock.record.batch import parse_header
from penstock.record.compression import Codec
from penstock.record.control import iter_control
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_batch

_BODY_WIDTH = 60

_PARTITION_COLUMNS = columns(
    "topic_id, partition#, start_offset# START, end_offset# END, segments#, size_bytes# SIZE, "
    "clean_stop, damaged_ranges# DAMAGED"
)
_FINDING_COLUMNS = columns(
    "kind FOUND, file, position# BYTE, first_offset# FROM OFFSET, next_offset# TO, reason WHY"
)
_RECORD_COLUMNS = columns(
    "offset#, kind, timestamp_ms TIME, epoch#, codec, group, message_id, body_bytes#, detail, body",
    timestamp_ms=moment,
    body_bytes="{:,}".format,
    body=lambda body: one_line(body, _BODY_WIDTH),
)
_dir_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
storage = Noun("storage", help="Inspect and verify the data folder of a stopped server.")


@storage.command("inspect")
@_dir_argument
def inspect_folder(session: Session, folder: Path) -> None:
    """List the partitions in a data folder."""
    rows = [
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
        for place, found in ((place, inspection.summarize(place)) for place in _partitions(folder))
    ]
    empty = f"no partitions in {folder}"
    session.out.many(rows, columns=_PARTITION_COLUMNS, name="topic_id", empty=empty)


@storage.command()
@_dir_argument
def verify(session: Session, folder: Path) -> None:
    """Read and check every byte of every log in a data folder. Exit code 8 if a log is damaged."""
    places = _partitions(folder)
    is_running = is_in_use(folder)
    if is_running:
        session.remark(
            f"a server runs on {folder}: a batch that it is writing may look torn or damaged;"
            " verify again, or stop the server first"
        )
    total = sum(path.stat().st_size for place in places for path in place.folder.glob("*.log"))
    findings: list[Json] = []
    done_bytes = batches = 0
    with progress_bar("verify", total=total, is_quiet=session.settings.quiet) as update:
        for place in places:
            for base_offset, next_base in inspection.segments_of(place):
                survey = _verify_segment(place, base_offset, next_base, findings)
                done_bytes += survey.bytes
                batches += survey.batches
                update(done_bytes)
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
    place: inspection.PartitionFolder, base_offset: int, next_base: int | None, findings: list[Json]
) -> inspection.SegmentReport:
    survey = inspection.verify_segment(place.folder, base_offset, next_base)
    file, end = str(survey.path), survey.end_offset
    damages = map(msgspec.structs.asdict, survey.damage)
    findings += [{"kind": "damage", **damage, "file": file} for damage in damages]
    # Remarks are about problems that the server repairs at its next start.
    remarks = [(file, remark) for remark in survey.remarks]
    lost = 0
    if next_base is None:
        remarks += [(str(place.folder), one) for one in inspection.verify_checkpoints(place.folder)]
        lost = inspection.lost_offsets(place.folder, end)
    findings += [{"kind": "remark", "file": where, "reason": why} for where, why in remarks]
    if lost:
        row = {"kind": "damage", "file": file, "position": survey.bytes, "first_offset": end}
        findings.append({**row, "next_offset": end + lost, "reason": "synced records are missing"})
    return survey


@storage.command("dump-segment")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--bodies", is_flag=True, help="also print message bodies and control record values")
@click.option("--from", "from_offset", metavar="OFFSET", default=0, help="first offset to print")
@count_option(None, 1_000, "maximum number of records to print")
def dump_segment(session: Session, file: Path, bodies: bool, from_offset: int, count: int) -> None:
    """Print the records of one segment file."""
    if not file.is_file():
        raise NotFound(f"{file} does not exist", fix="see `penstock storage inspect DIR`")
    if file.suffix != LOG_SUFFIX or base_offset_of(file.name) is None:
        raise Misuse(
            f"{file.name} is not a segment",
            "the name of a segment file is its first offset in 20 digits, followed by .log",
        )
    rows = islice(_segment_rows(file, from_offset=from_offset, with_bodies=bodies), count)
    shown = _RECORD_COLUMNS if bodies else _RECORD_COLUMNS[:-1]
    session.out.many(rows, columns=shown, name="offset", empty="no records in this range")


def _segment_rows(file: Path, *, from_offset: int, with_bodies: bool) -> Iterator[Json]:
    for part in inspection.iter_segment(file):
        if isinstance(part, Damage):
            detail = f"{part.size_bytes} bytes at {part.position}: {part.reason}"
            yield {"offset": part.first_offset, "kind": "damage", "detail": detail}
        else:
            yield from _batch_rows(part, from_offset=from_offset, with_bodies=with_bodies)


def _batch_rows(batch: bytes, *, from_offset: int, with_bodies: bool) -> Iterator[Json]:
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
            what = "sealed" if message.is_sealed else "message"  # a sealed body is encrypted
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
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "hex:" + data.hex()


def _partitions(folder: Path) -> list[inspection.PartitionFolder]:
    fix = "give the server's data folder, as in `penstock serve --data DIR`"
    if not folder.is_dir():
        raise NotFound(f"{folder} does not exist", fix=fix)
    if not (folder / inspection.TOPICS_FOLDER).is_dir():
        why = f"the folder has no subfolder {inspection.TOPICS_FOLDER}"
        raise NotFound(f"{folder} is not a data folder", why, fix)
    return inspection.find_partitions(folder)
