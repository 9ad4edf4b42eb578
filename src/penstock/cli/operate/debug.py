"""``penstock debug bundle``: collects the data for a bug report in one archive without secrets.

The server masks its own secrets. This command masks the text once more: values that are secret on
this machine, and text that looks like a secret. ``errors.txt`` lists parts that are missing."""

import io
import json
import os
import platform
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from penstock import __version__
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import Conflict, Failure
from penstock.cli.terminal.options import repeatable
from penstock.cli.terminal.output import installed_version

_LOG_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
LOG_BYTES = 4 * 1_048_576  # read from the end of each log file
_PACKAGES = "click msgspec rich grpcio cryptography zstandard pyspark pyarrow"

Piece = tuple[str, Callable[[], bytes]]
MASK: Final = "********"
_LENGTH_MIN: Final = 6  # shorter values occur in ordinary words, so they are not masked
_FILE_BYTES_MAX: Final = 65_536
_WORD: Final = r"(?:secret|token|passw(?:or)?d|credential|private|jaas|authorization)"
# The length is bounded, because a log line may have a million characters.
_NAME: Final = rf"[\w.-]{{0,64}}{_WORD}[\w.-]{{0,64}}"
_KEY_ENDS: Final = r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
_FORMS: Final = (
    (re.compile(rf"-----BEGIN [A-Z ]{{0,40}}PRIVATE KEY-----.*?{_KEY_ENDS}", re.DOTALL), MASK),
    # "secret": "…" in JSON, and in JSON inside a JSON string
    (re.compile(rf'(?i)(\\?"{_NAME}\\?"\s*:\s*\\?")(?:\\\\.|\\[^"]|[^"\\])*'), rf"\1{MASK}"),
    # secret=…, secret: …, password="…"
    (re.compile(rf"(?i)((?<![\w.]){_NAME}\s*[=:]\s*[\"']?)(?![\s\"'*])[^\s,;&\"']+"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+"), rf"\1 {MASK}"),
    (re.compile(r"(?i)(\bsignature=)[0-9a-f]{16,}"), rf"\1{MASK}"),
    (re.compile(r"(://[^/\s:@]{0,256}:)[^@/\s]{1,256}@"), rf"\1{MASK}@"),
    (re.compile(r"\bpsat1\.[\w-]+\.[\w-]+"), MASK),  # the token of a log-in
    (re.compile(r"(?i)(?<![0-9a-z])[0-9a-f]{64}(?![0-9a-z])"), MASK),  # 32 bytes, the size of keys
    # 40 characters of base64, the form of the secret of an access key, or 32 bytes in base64.
    (
        re.compile(
            r"(?<![\w+/-])(?=[\w+/-]{0,42}[A-Z])(?=[\w+/-]{0,42}[a-z])"
            r"[\w+/-]{40,43}=?(?![\w+/=-])"
        ),
        MASK,
    ),
)
debug = Noun("debug", help="Collect the data for a bug report, without secrets.")


@debug.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@repeatable("--log logs", "FILE", "log file of a server; its last 4 MiB are added", _LOG_FILE)
def bundle(session: Session, file: Path | None, logs: tuple[Path, ...]) -> None:
    """Write settings, metrics, status, doctor findings, versions and logs to a .tar.gz file.

    Secrets are masked. Names of queues, topics and users are not masked: check the file before
    you send it."""
    file = file or Path(time.strftime("penstock-debug-%Y%m%d-%H%M%S.tar.gz", time.gmtime()))
    mask = Mask.of_this_machine()
    errors: list[str] = []
    names = []
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Conflict(f"{file} exists already", fix="choose another name") from None
    with os.fdopen(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, collect in _pieces(session, logs):
            try:
                data = collect()
            except (Failure, OSError) as error:
                why = getattr(error, "why", "")
                errors.append(f"{name}: {error}{f': {why}' if why else ''}")
                continue
            _add(archive, name, mask.bytes(data))
            names.append(name)
        if errors:
            _add(archive, "errors.txt", mask.bytes("\n".join([*errors, ""]).encode()))
    for each in errors:
        session.remark(f"not collected: {mask.text(each)}")
    session.out.one(
        {"file": str(file), "size_bytes": file.stat().st_size, "pieces": names}, name="file"
    )


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(f"penstock-debug/{name}")
    info.size = len(data)
    info.mtime = int(time.time())
    info.mode = 0o600
    archive.addfile(info, io.BytesIO(data))


def _pieces(session: Session, logs: tuple[Path, ...]) -> Iterator[Piece]:
    yield "versions.json", lambda: _json(_versions())
    # Only the names of set variables: their values may be secret.
    variables = sorted(name for name in os.environ if name.startswith(("PENSTOCK_", "AWS_")))
    yield "environment.json", lambda: _json(variables)
    yield "doctor.json", lambda: _json(_findings(session))
    yield "info.json", lambda: _json(session.admin.info())
    yield "settings.json", lambda: _json(session.admin.get("config"))
    yield "ready.json", lambda: session.admin.page("/readyz")
    yield "metrics.txt", lambda: session.admin.page("/metrics")
    yield "callees.json", lambda: _json(session.admin.get("callees"))
    yield "queues.json", lambda: _json(list(session.admin.queues()))
    yield "cluster.json", lambda: _json(session.admin.get("cluster"))
    yield "partitions.json", lambda: _json(session.admin.get("cluster/partitions"))
    for number, log in enumerate(logs, 1):
        yield f"log-{number}-{log.name}", lambda log=log: _tail(log)  # type: ignore[misc]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str).encode() + b"\n"


def _versions() -> dict[str, Any]:
    return {
        "penstock": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": {name: installed_version(name) for name in _PACKAGES.split()},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _findings(session: Session) -> list[dict[str, Any]]:
    from penstock.cli.operate.doctor import examine

    findings, _ = examine(session, data=None, config_file=None, is_local=False)
    return [finding._asdict() for finding in findings]


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - LOG_BYTES))
        data = file.read(LOG_BYTES)
    return data if end <= LOG_BYTES else data.partition(b"\n")[2]


class Mask:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found: set[str] = set()
        for secret in secrets:
            if len(secret) >= _LENGTH_MIN:
                found |= {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}
        # Longest first, because one secret may be part of another.
        self._known = sorted(found, key=len, reverse=True)

    @classmethod
    def of_this_machine(cls) -> "Mask":
        return cls([*_of_environment(), *_of_contexts(), *_of_settings()])

    def text(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, MASK)
        for form, shown in _FORMS:
            text = form.sub(shown, text)
        return text

    def bytes(self, data: bytes) -> bytes:
        return self.text(data.decode("utf-8", "replace")).encode()


def _of_environment() -> Iterator[str]:
    for name, value in os.environ.items():
        if re.search(_WORD, name, re.IGNORECASE):
            yield value
            if name.upper().endswith("_FILE"):
                with suppress(OSError, ValueError), Path(value).open("rb") as file:
                    yield file.read(_FILE_BYTES_MAX).decode("utf-8", "replace").strip()


def _of_contexts() -> Iterator[str]:
    from penstock.cli.clients.contexts import Contexts

    with suppress(Failure):
        for context in Contexts.read().contexts.values():
            yield context.get("secret", "")


def _of_settings() -> Iterator[str]:
    from penstock.node.configuration import config as node_config

    with suppress(node_config.ConfigInvalid):
        files = node_config.config_files(None)
        yield node_config.load({}, os.environ, files).config.admin.token
