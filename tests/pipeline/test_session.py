"""Sessions: what they are set to, what they leave alone, and the code that goes with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline.arrow_map import map_in_arrow, schema_of
from penstock.pipeline.session import code_zip, open_session
from penstock.pipeline.spark.java import archive_file, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_is_local_quiet_and_in_utc(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None


def test_a_session_maps_the_classes_that_warm_has_archived(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    arguments = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    archive = str(archive_file(find_java()))
    assert any(archive in str(argument) for argument in arguments)


def test_an_open_session_is_given_to_whoever_asks_again(spark: SparkSession) -> None:
    assert open_session("another", master="local[7]") is spark


def test_ctrl_c_stays_with_whoever_had_it(spark: SparkSession) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_arrow_goes_through_python_without_pandas(spark: SparkSession) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"id": pc.multiply(batch.column(0), 2)})

    rows = map_in_arrow(spark.range(0, 1_000, 1, 3), doubled, schema_of("id long")).collect()
    assert sorted(row.id for row in rows) == list(range(0, 2_000, 2))


def test_a_worker_that_dies_is_replaced_and_its_task_done_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    import pyarrow as pa

    mark = str(tmp_path / "died")

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            yield from batches
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    assert map_in_arrow(spark.range(0, 100, 1, 2), dies_once, schema_of("id long")).count() == 100
    assert Path(mark).exists()


# ── Shipping ─────────────────────────────────────────────────────────────────────────────────


def test_our_code_is_one_zip_that_runs_without_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    shipped = code_zip()
    first = shipped.read_bytes()
    assert code_zip() == shipped
    shipped.unlink()
    assert code_zip().read_bytes() == first, "the same code gives the same bytes"
    names = zipfile.ZipFile(shipped).namelist()
    assert "penstock/pipeline/session.py" in names
    assert "penstock/pipeline/log4j2.properties" in names
    assert not [name for name in names if "__pycache__" in name]
    code = "import penstock.model.limits as m; import sys; sys.exit('.zip' not in m.__file__)"
    subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(shipped), "PATH": os.environ["PATH"]},
        check=True,
    )


def test_zips_of_old_code_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(9):
        old = folder / f"penstock-{number}.zip"
        old.touch()
        os.utime(old, (number, number))
    newest = code_zip()
    kept = {path.name for path in folder.iterdir()}
    assert kept == {newest.name, "penstock-6.zip", "penstock-7.zip", "penstock-8.zip"}
