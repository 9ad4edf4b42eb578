"""Packs Penstock's code into a zip for executors on machines where Penstock is not installed. The
name of the zip is a hash of its contents. It is kept in the cache folder, from where Spark serves
it. Dependencies must be installed on the executors: compiled packages do not run from a zip."""

import hashlib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from penstock.pipeline.files import replacing
from penstock.pipeline.spark.java import cache_folder

PACKAGES = ("penstock", "pyspark_penstock")
_KEPT_MAX = 4
_EPOCH = (1980, 1, 1, 0, 0, 0)  # one time for all files: the same code gives the same bytes


def code_zip() -> Path:
    files = sorted(_files())
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    folder = cache_folder() / "code"
    target = folder / f"penstock-{digest.hexdigest()[:16]}.zip"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(target) as file, zipfile.ZipFile(file, "w") as archive:
            for name, path in files:
                entry = zipfile.ZipInfo(name, _EPOCH)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        zips = sorted(folder.glob("penstock-*.zip"), key=lambda path: path.stat().st_mtime)
        for old in zips[:-_KEPT_MAX]:
            old.unlink(missing_ok=True)
    return target


def _files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            root = Path(place)
            for path in root.rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    yield f"{package}/{path.relative_to(root).as_posix()}", path
