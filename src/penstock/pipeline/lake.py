"""The lake is a folder of Delta tables that all jobs write to and any Delta reader can open. It
must be local or mounted on all executors. There is no catalog service.

A commit names part files that executors have written (``parts.py``) and the number of the
micro-batch, so a commit that is retried after a crash does nothing. Each commit checks for
conflicts with other writers:

- ``(app, batch_id)``: an app is ``<job>:<query id>``. A batch that the table already has is
  skipped. If two drivers of one query commit the same batch, only one commit succeeds.
- **turns** are the commit numbers of a job, counted over all its queries. A commit takes the next
  turn, and is rejected if another commit took this turn first.
- **tracked** tables contain records of a log (columns topic, partition, offset). Each commit takes
  a turn and stores the new end offsets of the table. It is rejected if it begins before the old end
  offsets, so a query with a lost checkpoint, or a second query, cannot add a record twice. If
  topics have ids, a table that has records of a topic rejects a later topic of the same name.

A commit is durable when ``commit`` returns."""

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from penstock.pipeline.arrow_map import map_in_arrow
from penstock.pipeline.parts import (
    PART_SCHEMA,
    Part,
    Spans,
    add_spans,
    part_batches,
    read_parts,
    spans_of_file,
    sync,
    write_parts,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Ends = dict[str, dict[int, int]]  # topic, partition: the offset after the last record

VACUUM_HOURS_MIN: Final = 24  # before their commit, new files look like orphans
COMPACT_BYTES: Final = 128 * 1_048_576
_COMMIT_TRIES: Final = 5  # if other commits change the schema or the files meanwhile
_HISTORY_MAX: Final = 10_000  # commits that are searched for the end offsets of a job
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}(/[A-Za-z0-9._-]{1,249}){0,3}")
_APP, _BATCH, _ENDS = "penstockApp", "penstockBatch", "penstockEnds"
_IDS = "penstockTopicIds"
_NOT_NULL = re.compile(r'"(nullable|containsNull|valueContainsNull)":\s*false')
_ID_CHARS = 8  # of a topic's id, in the folder name of a table that was moved aside


class LakeError(Exception):
    """Raised if an operation on the lake fails. The text is written for users."""


class TableMissing(LakeError):
    pass


class SchemaConflict(LakeError):
    """Raised if the column types or partition columns of rows differ from those of the table."""


class LakeFenced(LakeError):
    """Raised if another query of the same job writes to the table, so this query must end."""


class RecordsRepeated(LakeError):
    """Raised if the table already has records of the batch, from another query."""


class TopicRemade(RecordsRepeated):
    """Raised if a topic was created again, and its table has records of the deleted topic."""

    def __init__(self, path: Path, topic: str, *, before: str, now: str) -> None:
        super().__init__(
            f"topic {topic} was deleted and created again: its table {path} holds records of id"
            f" {before}, but the topic now has id {now} and new offsets; to keep both, move the"
            f" table to {path}.{before[:_ID_CHARS]}, remove the job's checkpoint, and run the job"
            " again: other topics continue where they were"
        )


class Commit(NamedTuple):
    """The result of ``append``. ``is_new`` is False if the table had the batch already."""

    batch_id: int
    is_new: bool
    rows: int = 0


class Table:
    """A Delta table. Each method reads the version that is current when it is called."""

    def __init__(self, lake: Path, name: str) -> None:
        if not _NAME.fullmatch(name) or any(each.strip(".") == "" for each in name.split("/")):
            raise LakeError(f"'{name}' is not a valid table name")
        self.name = name
        self.path = lake / name

    def exists(self) -> bool:
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(str(self.path))

    def open(self) -> "DeltaTable":
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(str(self.path))
        except TableNotFoundError:
            raise TableMissing(f"the lake has no table {self.name}") from None

    def version_of(self, app: str) -> int | None:
        return self.open().transaction_version(app) if self.exists() else None

    def has(self, app: str, batch_id: int) -> bool:
        last = self.version_of(app)
        return last is not None and last >= batch_id

    def turn_of(self, job: str) -> int:
        """Return the last turn (commit number) of a job in this table, or 0."""
        return self.open().transaction_version(f"turn:{job}") or 0 if self.exists() else 0

    def ensure(self, columns: "StructType | pa.Schema", partition_by: Sequence[str]) -> None:
        """Create the table, or add missing columns. Raises SchemaConflict if types differ."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        # Spark and Delta describe a schema by the same JSON. All columns are nullable, because a
        # column that is added later is null in older files.
        if isinstance(columns, pa.Schema):
            columns = Schema.from_arrow(columns)
        text = columns.to_json() if isinstance(columns, Schema) else columns.json()
        schema = Schema.from_json(_NOT_NULL.sub(r'"\1":true', text))
        wanted = {field.name: field for field in schema.fields}
        for name in partition_by:
            if name not in wanted:
                raise SchemaConflict(f"rows for {self.name} lack the partition column {name}")
        if not self.exists():
            DeltaTable.create(self.path, schema, mode="ignore", partition_by=list(partition_by))
            self._sync_log(0)
        for _ in range(_COMMIT_TRIES):
            handle = self.open()
            by = handle.metadata().partition_columns
            if list(partition_by) != by:
                raise SchemaConflict(
                    f"table {self.name} is partitioned by {by}, not by {list(partition_by)}"
                )
            existing = {field.name: field for field in handle.schema().fields}
            for name, column in wanted.items():
                if name in existing and existing[name].type != column.type:
                    raise SchemaConflict(
                        f"column {name} of table {self.name} is {existing[name].type},"
                        f" but the rows have {column.type}"
                    )
            new = [column for name, column in wanted.items() if name not in existing]
            if not new:
                return
            try:
                handle.alter.add_columns(new)
            except DeltaError:
                continue  # another writer was first, perhaps with the same columns: retry
            self._settle(handle)
            return
        raise LakeFenced(f"other programs keep changing the columns of table {self.name}")

    def commit(
        self,
        parts: Sequence[Part],
        *,
        app: str,
        batch_id: int,
        is_tracked: bool = False,
        ids: Mapping[str, str] | None = None,
        turn: int | None = None,
        replace_where: str | None = None,
    ) -> Commit:
        """Add part files to the table, once for each (app, batch_id). ``ids`` are topic ids by
        name. If ``turn`` is given, it must be ``turn_of`` plus 1, and the commit is rejected if
        another query took this turn."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction

        job, trouble = job_of(app), ""
        for _ in range(_COMMIT_TRIES):
            handle = self.open()
            done = handle.transaction_version(app)
            if done is not None and done >= batch_id:
                self._drop(parts, handle)
                return Commit(batch_id, is_new=False)
            transactions = [Transaction(app, batch_id)]
            info: dict[str, Any] = {_APP: app, _BATCH: batch_id}
            if is_tracked or turn is not None:
                # Each commit of a job takes the next turn, so the turn and the end offsets that
                # are compared here are still valid when the commit succeeds.
                next_turn = (handle.transaction_version(f"turn:{job}") or 0) + 1
                turn = next_turn if turn is None else turn
                if turn != next_turn:
                    self._drop(parts, handle)
                    raise LakeFenced(f"another query of {job} writes to table {self.name}")
                transactions.append(Transaction(f"turn:{job}", turn))
            if is_tracked:
                known = self._same_topics(handle, job, parts, ids or {})
                info |= {_IDS: json.dumps(known)} if known else {}
                info[_ENDS] = json.dumps(self._advance(handle, job, parts))
            adds = [
                AddAction(
                    p.path, p.size, p.values, p.written_at_ms, data_change=True, stats=p.stats
                )
                for p in parts
            ]
            try:
                handle.create_write_transaction(
                    [*adds, *self._removes(handle, replace_where)],
                    mode="append",
                    schema=handle.schema(),
                    partition_by=handle.metadata().partition_columns,
                    commit_properties=CommitProperties(
                        custom_metadata=info, app_transactions=transactions, max_commit_retries=50
                    ),
                )
            except DeltaError as error:
                trouble = str(error)
                continue  # usually a conflict: check again with a new handle
            self._settle(handle)
            return Commit(batch_id, is_new=True, rows=sum(part.rows for part in parts))
        raise LakeFenced(f"commits to table {self.name} keep failing: {trouble}")

    def _same_topics(
        self, handle: "DeltaTable", job: str, parts: Sequence[Part], ids: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the ids of all topics in the table. Raises TopicRemade if an id has changed."""
        known = self._ids(handle, job)
        for topic, now in ids.items():
            before = known.get(topic, now)
            if before != now:
                self._drop(parts, handle)
                raise TopicRemade(self.path, topic, before=before, now=now)
        return {**known, **ids}

    def _advance(self, handle: "DeltaTable", job: str, parts: Sequence[Part]) -> Ends:
        """Return the end offsets that the table has after these parts are added."""
        ends = self._ends(handle, job)
        spans: Spans = {}
        for part in parts:
            add_spans(spans, part.spans)
        for (topic, partition), span in spans.items():
            end = ends.setdefault(topic, {}).get(partition, 0)
            if span.first < end:
                self._drop(parts, handle)
                raise RecordsRepeated(
                    f"table {self.name} has partition {partition} of topic {topic} up to offset"
                    f" {end - 1}, and this batch begins at {span.first}: the job ran with another"
                    " checkpoint, or the topic was deleted and created again"
                )
            ends[topic][partition] = span.last + 1
        return ends

    def _removes(self, handle: "DeltaTable", where: str | None) -> "list[RemoveAction]":
        from deltalake.transaction import RemoveAction

        if where is None:
            return []
        now_ms = time.time_ns() // 1_000_000
        paths = handle.file_uris(file_pruning_predicate=where)
        return [RemoveAction(path.removeprefix(f"{self.path}/"), True, now_ms) for path in paths]

    def _drop(self, parts: Sequence[Part], handle: "DeltaTable") -> None:
        """Delete the files of ``parts`` that are not in the table."""
        named = set(handle.file_uris())
        for part in parts:
            path = self.path / part.path
            if str(path) not in named:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _settle(self, handle: "DeltaTable") -> None:
        """Sync the last commit to disk before Spark records the batch as done."""
        before = handle.version()
        handle.update_incremental()
        for version in range(before, handle.version() + 1):
            self._sync_log(version)

    def _sync_log(self, version: int) -> None:
        log = self.path / "_delta_log"
        with contextlib.suppress(FileNotFoundError):  # if another process just cleaned the log
            sync(log / f"{version:020d}.json")
        sync(log)
        if version == 0:
            sync(self.path)

    def end_offsets(self, job: str) -> Ends:
        return self._ends(self.open(), job_of(job)) if self.exists() else {}

    def _ends(self, handle: "DeltaTable", job: str) -> Ends:
        if handle.transaction_version(f"turn:{job}") is None:
            return {}
        info = self._last_tracked(handle, job)
        if info is not None:
            texts = json.loads(str(info[_ENDS])).items()
            return {topic: {int(p): end for p, end in of.items()} for topic, of in texts}
        # The log no longer has the job's last commit: read the offsets from the rows.
        ends: Ends = {}
        for path in handle.file_uris():
            for (topic, partition), span in spans_of_file(path).items():
                of_topic = ends.setdefault(topic, {})
                of_topic[partition] = max(of_topic.get(partition, 0), span.last + 1)
        return ends

    def topic_ids(self, job: str) -> dict[str, str]:
        return self._ids(self.open(), job_of(job)) if self.exists() else {}

    def _ids(self, handle: "DeltaTable", job: str) -> dict[str, str]:
        info = self._last_tracked(handle, job)
        return dict(json.loads(str(info.get(_IDS, "{}")))) if info is not None else {}

    def _last_tracked(self, handle: "DeltaTable", job: str) -> Mapping[str, Any] | None:
        """Return the metadata of a job's last commit that stored end offsets, or None."""
        log, version = self.path / "_delta_log", handle.version()
        for number in range(version, max(-1, version - _HISTORY_MAX), -1):
            try:
                lines = (log / f"{number:020d}.json").read_text().splitlines()
            except FileNotFoundError:
                return None  # older commits are in a checkpoint, which does not have their metadata
            for line in lines:
                info: dict[str, Any] = json.loads(line).get("commitInfo", {})
                if job_of(str(info.get(_APP, ""))) == job and _ENDS in info:
                    return info
        return None

    def files(self, where: str | None = None) -> list[str]:
        return self.open().file_uris(file_pruning_predicate=where or None)

    def schema(self) -> "StructType":
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.open().schema().to_json()))

    def compact(
        self, partitions: Sequence[tuple[str, str, Any]] | None = None, *, size: int = COMPACT_BYTES
    ) -> int:
        """Merge small files without reordering rows, and return how many fewer files there are."""
        from deltalake import CommitProperties, WriterProperties

        handle = self.open()
        result = handle.optimize.compact(
            partition_filters=list(partitions) if partitions else None,
            target_size=size,
            max_concurrent_tasks=1,
            writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
            commit_properties=CommitProperties(custom_metadata={_APP: "compact", _BATCH: 0}),
        )
        self._settle(handle)
        return int(result["numFilesRemoved"]) - int(result["numFilesAdded"])

    def files_by(self, columns: Sequence[str]) -> dict[tuple[str, ...], int]:
        actions = self.open().get_add_actions(flatten=True)
        values = [actions.column(f"partition.{name}").to_pylist() for name in columns]
        keys = zip(*values, strict=True)
        return Counter(tuple("" if each is None else str(each) for each in key) for key in keys)

    def vacuum(self, retention_hours: int = 7 * 24) -> list[str]:
        """Delete files that no version of the last ``retention_hours`` uses. Return their paths."""
        if retention_hours < VACUUM_HOURS_MIN:
            raise LakeError(
                f"vacuum must keep at least {VACUUM_HOURS_MIN} hours: a commit may be in progress"
            )
        return self.open().vacuum(
            retention_hours, dry_run=False, enforce_retention_duration=False, full=True
        )


class Lake:
    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            raise LakeError(f"a lake must be a local or mounted folder, not the URL {path}")
        self.path = Path(path).absolute()

    def table(self, name: str) -> Table:
        return Table(self.path, name)

    def tables(self, under: str = "") -> list[str]:
        logs = sorted((self.path / under).glob("**/_delta_log"))
        return [str(log.parent.relative_to(self.path)) for log in logs]

    def exists(self, table: str) -> bool:
        return self.table(table).exists()

    def append(
        self,
        rows: "DataFrame | pa.Table",
        table: str,
        *,
        app: str,
        batch_id: int,
        partition_by: Sequence[str] = (),
        is_tracked: bool = False,
        replace_where: str | None = None,
    ) -> Commit:
        """Append a DataFrame, or an Arrow table with few rows, once for each (app, batch_id). If
        ``replace_where``, a condition on partition columns, is given, the commit also removes the
        files that match it."""
        target = self.table(table)
        if target.has(app, batch_id):
            return Commit(batch_id, is_new=False)
        target.ensure(rows.schema, partition_by)
        root, by = target.path, tuple(partition_by)
        if isinstance(rows, pa.Table):
            parts = write_parts(rows.to_batches(), root, by, is_tracked=is_tracked)
        else:

            def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                return part_batches(batches, root, by, is_tracked=is_tracked)

            parts = read_parts(map_in_arrow(rows, write, PART_SCHEMA))
        how: dict[str, Any] = {"is_tracked": is_tracked, "replace_where": replace_where}
        return target.commit(parts, app=app, batch_id=batch_id, **how)

    def read(
        self,
        spark: "SparkSession",
        table: str,
        where: str | None = None,
        *,
        files: str | None = None,
    ) -> "DataFrame":
        """Read the current version of a table. ``where`` is an SQL condition on rows. It also
        selects the files to read, unless ``files``, a simpler condition on files, is given."""
        from deltalake.exceptions import DeltaError

        target = self.table(table)
        schema = target.schema()
        try:
            paths = target.files(files if files is not None else where)
        except DeltaError as error:
            if files is not None:
                raise LakeError(f"cannot select files of {table} by {files}: {error}") from None
            paths = target.files()  # pruning supports less SQL than Spark: read all files
        if paths:
            # With the schema, Spark does not guess the types of partition values.
            source = spark.read.schema(schema).option("basePath", str(target.path))
            rows = source.parquet(*paths)
        else:
            rows = spark.createDataFrame([], schema)
        rows = rows.select(*[f"`{name}`" for name in schema.fieldNames()])
        return rows if where is None else rows.where(where)

    def version_of(self, table: str, app: str) -> int | None:
        return self.table(table).version_of(app)

    def end_offsets(self, table: str, job: str) -> Ends:
        return self.table(table).end_offsets(job)


def job_of(app: str) -> str:
    """Return the name of the job in an app id: ``archive`` for ``archive:3f2a…``."""
    return app.partition(":")[0]


def query_app(job: str, checkpoint: str | Path) -> str:
    """Return ``<job>:<query id>``, with the query id from Spark's checkpoint. The job's name alone
    is not enough, because a new checkpoint counts batches from 0 again."""
    metadata = json.loads((Path(checkpoint) / "metadata").read_text())
    return f"{job}:{metadata['id']}"
