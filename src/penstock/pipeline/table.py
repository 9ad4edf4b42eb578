"""One Delta table: its schema, its commits, and the rules that separate concurrent writers.

A commit names part files that executors have written (``parts.py``) together with the number of the
micro-batch. Conflicts between writers are checked on the same handle that then commits:

- ``(app, batch_id)``: an app is ``<job>:<query id>``. A batch that the table already has is
  skipped. Two drivers of one query may both try a batch; one commit succeeds.
- **turns** count the commits of a job over all its queries. A commit takes the next turn, and is
  rejected if another commit took it in the meantime.
- **tracked** tables contain records of a log (columns topic, partition, offset). Each commit takes
  a turn, states the new end offsets of the table, and is rejected if it begins before the old ones:
  a new query with a lost checkpoint, or a second concurrent query, cannot add a record twice. If
  topics have ids, a table holds one topic and rejects a later topic of the same name.

A commit is durable when ``commit`` returns. ``lake.py`` has all tables of a folder."""

import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.pipeline.parts import Part, Spans, add_spans, spans_of_file, sync

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction
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
_ID_CHARS = 8  # of a topic's id, in the folder name of a table that was moved aside


class LakeError(Exception):
    """An operation on the lake failed; the text is for users."""


class TableMissing(LakeError):
    """The table does not exist."""


class SchemaConflict(LakeError):
    """Rows do not fit the table: a column's type or the partition columns differ."""


class LakeFenced(LakeError):
    """Another query of the same job wrote to the table in the meantime: this query must end."""


class RecordsRepeated(LakeError):
    """A batch has records that the table has from another query, or a topic was re-created."""


class TopicRemade(RecordsRepeated):
    """A topic was deleted and created again; the table has the records of the old topic."""

    def __init__(self, path: Path, topic: str, *, before: str, now: str) -> None:
        super().__init__(
            f"topic {topic} was deleted and created again: its table {path} holds records of id"
            f" {before}, but the topic now has id {now} and new offsets; to keep both, move the"
            f" table to {path}.{before[:_ID_CHARS]}, remove the job's checkpoint, and run the job"
            " again: other topics continue where they were"
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """The result of ``append``. ``is_new`` is False if the table had the batch already."""

    version: int
    batch_id: int
    is_new: bool
    rows: int = 0
    files: int = 0
    size: int = 0


class Table:
    """A table, which each method opens again: results are always current."""

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

    @property
    def version(self) -> int:
        return self.open().version()

    def version_of(self, app: str) -> int | None:
        """Return the last batch of an app in the table, or None."""
        return self.open().transaction_version(app) if self.exists() else None

    def has(self, app: str, batch_id: int) -> bool:
        """Return whether the table has this batch of an app, or a later one."""
        last = self.version_of(app)
        return last is not None and last >= batch_id

    def turn_of(self, job: str) -> int:
        """Return the number of a job's commits with a turn, over all its queries."""
        return self.open().transaction_version(f"turn:{job}") or 0 if self.exists() else 0

    # ── Schema ───────────────────────────────────────────────────────────────────────────────

    def ensure(self, columns: "StructType | pa.Schema", partition_by: Sequence[str]) -> None:
        """Create the table, or add the columns that it does not have. Raises SchemaConflict."""
        from deltalake import DeltaTable, Schema

        # Spark and Delta describe a schema by the same JSON. All columns are nullable, because a
        # column that is added later is null in older files.
        if isinstance(columns, pa.Schema):
            columns = Schema.from_arrow(columns)
        text = columns.to_json() if isinstance(columns, Schema) else columns.json()
        schema = Schema.from_json(_nullable(text))
        wanted = {field.name: field for field in schema.fields}
        missing = [name for name in partition_by if name not in wanted]
        if missing:
            raise SchemaConflict(f"rows for {self.name} lack the partition column {missing[0]}")
        if not self.exists():
            DeltaTable.create(
                str(self.path), schema, mode="ignore", partition_by=list(partition_by)
            )
            self._sync_log(0)
        for _ in range(_COMMIT_TRIES):
            handle = self.open()
            if list(partition_by) != handle.metadata().partition_columns:
                raise SchemaConflict(
                    f"table {self.name} is partitioned by {handle.metadata().partition_columns},"
                    f" not by {list(partition_by)}"
                )
            existing = {field.name: field for field in handle.schema().fields}
            for name, column in wanted.items():
                if name in existing and existing[name].type != column.type:
                    raise SchemaConflict(
                        f"column {name} of table {self.name} is {existing[name].type},"
                        f" rows have {column.type}"
                    )
            new = [column for name, column in wanted.items() if name not in existing]
            if not new or self._add_columns(handle, new):
                return
        raise LakeFenced(f"other programs keep changing the columns of table {self.name}")

    def _add_columns(self, handle: "DeltaTable", columns: list[Any]) -> bool:
        from deltalake.exceptions import DeltaError

        try:
            handle.alter.add_columns(columns)
        except DeltaError:
            return False  # another writer was first, perhaps with the same columns: retry
        self._settle(handle)
        return True

    # ── Commit ───────────────────────────────────────────────────────────────────────────────

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
        """Name part files in the log, once for each (app, batch_id). ``ids``: known ids of the
        topics, for a tracked table."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        job, trouble = job_of(app), ""
        for _ in range(_COMMIT_TRIES):
            handle = self.open()
            done = handle.transaction_version(app)
            if done is not None and done >= batch_id:
                self._drop(parts, handle)
                return Commit(handle.version(), batch_id, is_new=False)
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
                info[_ENDS] = _to_text(self._advance(handle, job, parts))
            try:
                handle.create_write_transaction(
                    [*_adds(parts), *self._removes(handle, replace_where)],
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
            version = self._settle(handle)
            rows, size = sum(part.rows for part in parts), sum(part.size for part in parts)
            return Commit(version, batch_id, is_new=True, rows=rows, files=len(parts), size=size)
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
        """Return the end offsets of the table with these parts. Raises RecordsRepeated."""
        ends = self._ends(handle, job)
        for (topic, partition), span in _spans(parts).items():
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
        root = str(self.path).rstrip("/") + "/"
        paths = handle.file_uris(file_pruning_predicate=where)
        return [RemoveAction(path.removeprefix(root), True, now_ms) for path in paths]

    def _drop(self, parts: Sequence[Part], handle: "DeltaTable") -> None:
        """Delete files that no commit will name. Vacuum deletes those that this misses.

        A commit may succeed and be reported as failed; then the table has these files, and they
        are kept."""
        named = set(handle.file_uris())
        for part in parts:
            path = self.path / part.path
            if str(path) not in named:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _settle(self, handle: "DeltaTable") -> int:
        """Make the last commit durable, before Spark's checkpoint records the batch as done. Return
        the version of the table after the commit."""
        before = handle.version()
        handle.update_incremental()
        for version in range(before, handle.version() + 1):
            self._sync_log(version)
        return handle.version()

    def _sync_log(self, version: int) -> None:
        log = self.path / "_delta_log"
        with contextlib.suppress(FileNotFoundError):  # if another process just cleaned the log
            sync(log / f"{version:020d}.json")
        sync(log)
        if version == 0:
            sync(self.path)

    # ── The table as a checkpoint ────────────────────────────────────────────────────────────

    def end_offsets(self, job: str) -> Ends:
        """Return the end offsets of a job's records in this table; empty if there are none."""
        return self._ends(self.open(), job_of(job)) if self.exists() else {}

    def _ends(self, handle: "DeltaTable", job: str) -> Ends:
        if handle.transaction_version(f"turn:{job}") is None:
            return {}
        info = self._last_tracked(handle, job)
        if info is not None:
            return _from_text(str(info[_ENDS]))
        # The log no longer has the job's last commit: read the offsets from the rows.
        ends: Ends = {}
        for path in handle.file_uris():
            for (topic, partition), span in spans_of_file(path).items():
                of_topic = ends.setdefault(topic, {})
                of_topic[partition] = max(of_topic.get(partition, 0), span.last + 1)
        return ends

    def topic_ids(self, job: str) -> dict[str, str]:
        """Return the known ids of the topics whose records a job has added."""
        return self._ids(self.open(), job_of(job)) if self.exists() else {}

    def _ids(self, handle: "DeltaTable", job: str) -> dict[str, str]:
        info = self._last_tracked(handle, job)
        return dict(json.loads(str(info.get(_IDS, "{}")))) if info is not None else {}

    def _last_tracked(self, handle: "DeltaTable", job: str) -> Mapping[str, Any] | None:
        """Return the metadata of a job's last tracked commit, if the log still has it."""
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

    # ── Reading and upkeep ───────────────────────────────────────────────────────────────────

    def files(self, where: str | None = None) -> list[str]:
        """Return the paths of the files that may have rows for a condition."""
        return self.open().file_uris(file_pruning_predicate=where or None)

    def schema(self) -> "StructType":
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.open().schema().to_json()))

    def read(
        self, spark: "SparkSession", where: str | None = None, *, files: str | None = None
    ) -> "DataFrame":
        from deltalake.exceptions import DeltaError

        schema = self.schema()
        try:
            paths = self.files(files if files is not None else where)
        except DeltaError as error:
            if files is not None:
                raise LakeError(f"cannot choose files of {self.name} by {files}: {error}") from None
            paths = self.files()  # pruning supports less SQL than Spark: read all files
        if paths:
            # With the schema, Spark does not guess the types of partition values.
            source = spark.read.schema(schema).option("basePath", str(self.path))
            df = source.parquet(*paths)
        else:
            df = spark.createDataFrame([], schema)
        df = df.select(*[f"`{name}`" for name in schema.fieldNames()])
        return df if where is None else df.where(where)

    def compact(
        self, partitions: Sequence[tuple[str, str, Any]] | None = None, *, size: int = COMPACT_BYTES
    ) -> int:
        """Merge small files, and return by how many files there are fewer. Keeps order of rows."""
        from deltalake import CommitProperties, WriterProperties

        handle = self.open()
        info = {_APP: "compact", _BATCH: 0}
        result = handle.optimize.compact(
            partition_filters=list(partitions) if partitions else None,
            target_size=size,
            max_concurrent_tasks=1,
            writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
            commit_properties=CommitProperties(custom_metadata=info),
        )
        self._settle(handle)
        return int(result["numFilesRemoved"]) - int(result["numFilesAdded"])

    def files_by(self, columns: Sequence[str]) -> dict[tuple[str, ...], int]:
        """Return the number of files for each combination of partition values, as texts."""
        found: dict[tuple[str, ...], int] = {}
        actions = self.open().get_add_actions(flatten=True)
        values = [actions.column(f"partition.{name}").to_pylist() for name in columns]
        for key in zip(*values, strict=True):
            texts = tuple("" if each is None else str(each) for each in key)
            found[texts] = found.get(texts, 0) + 1
        return found

    def vacuum(self, retention_hours: int = 7 * 24) -> list[str]:
        """Delete files that no commit of the last hours names, and return their paths."""
        if retention_hours < VACUUM_HOURS_MIN:
            raise LakeError(
                f"at least {VACUUM_HOURS_MIN} hours are required: a commit may be in progress"
            )
        return self.open().vacuum(
            retention_hours, dry_run=False, enforce_retention_duration=False, full=True
        )


def job_of(app: str) -> str:
    """Return the job of an app: ``archive:3f2a…`` is a query of the job ``archive``."""
    return app.partition(":")[0]


def query_app(job: str, checkpoint: str | Path) -> str:
    """Return the app of a streaming query: the job and the query id from Spark's checkpoint.

    A new checkpoint counts batches from 0 again, so the job's name alone is not enough."""
    metadata = json.loads((Path(checkpoint) / "metadata").read_text())
    return f"{job}:{metadata['id']}"


def _nullable(schema: str) -> str:
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":\s*false', r'"\1":true', schema)


def _adds(parts: Sequence[Part]) -> "list[AddAction]":
    from deltalake.transaction import AddAction

    return [
        AddAction(
            path=part.path,
            size=part.size,
            partition_values=part.values,
            modification_time=part.written_at_ms,
            data_change=True,
            stats=part.stats,
        )
        for part in parts
    ]


def _spans(parts: Sequence[Part]) -> Spans:
    found: Spans = {}
    for part in parts:
        add_spans(found, part.spans)
    return found


def _to_text(ends: Ends) -> str:
    return json.dumps({topic: {str(p): end for p, end in of.items()} for topic, of in ends.items()})


def _from_text(text: str) -> Ends:
    return {t: {int(p): end for p, end in of.items()} for t, of in json.loads(text).items()}
