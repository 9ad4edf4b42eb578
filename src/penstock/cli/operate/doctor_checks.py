"""The checks of ``penstock doctor``, each a small function that returns findings. Only the fsync
check writes: one small file in the data folder, which it removes."""

import os
import platform
import resource
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.broker.context.disk import reserve_of
from penstock.cli.clients.http import Json, as_seen_from, is_loopback
from penstock.cli.command import Session
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.cli.terminal.output import Finding, Status, installed_version
from penstock.model.troubles import (
    CLOCK_DO,
    CLOCK_SKEW_MS_MAX,
    DISK_DO,
    WARNINGS,
    Kind,
    clock_skew_text,
    disk_full_text,
)
from penstock.model.units import size
from penstock.node.configuration import config as node_config

_PACKAGES = ("penstock", "uvloop", "httptools", "msgspec")
_FILES_WANTED = 4_096  # for connections and segments of a busy node; the usual default is 1,024
_FREE_WANTED_BYTES = 1_073_741_824
_FSYNC_ROUNDS = 20
_FSYNC_SLOW_MS = 20.0
# A clock before the release of this program is wrong: 2026-01-01.
_EARLIEST_S = 1_767_225_600


class Report(NamedTuple):
    findings: list[Finding]
    config: list[dict[str, Any]]


def examine(
    session: Session, *, data: str | None, config_file: str | None, is_local: bool
) -> Report:
    findings: list[Finding] = [_software(), _open_files()]
    info: Json | None = None
    skew_ms: int | None = None
    if not is_local:
        server, info = _server(session)
        findings += server
        if info is not None and "now_ms" in info:
            skew_ms = round(info["now_ms"] - time.time() * 1_000)
    rows: list[dict[str, Any]] = []
    if info is not None:
        rows, found = _remote_config(session)
        findings.append(found)
    if not rows:
        rows, found = _local_config(data, config_file)
        findings.append(found)
    values = {row["key"]: row["value"] for row in rows}
    if info is None:
        findings += _ports(values)
    if info is None or is_loopback(session.settings.endpoint):
        folder = Path(data or (info or {}).get("data") or values.get("node.data") or ".")
        kinds = {one.get("kind") for one in (info or {}).get("reasons") or ()}
        is_reported = bool(kinds & {Kind.DISK_FULL, Kind.DISK_LOW})
        reserve_bytes = int(values.get("log.disk_reserve_bytes") or 0)
        findings += _disk(folder, reserve_bytes, is_reported=is_reported)
    findings += _certificates(session, info, values, is_local=is_local)
    findings.append(_clock(skew_ms))
    return Report(findings, rows)


def _software() -> Finding:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    found = {name: installed_version(name) for name in _PACKAGES}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        fix = "install penstock again with its dependencies"
        return Finding("software", "fail", f"missing: {', '.join(missing)}", fix)
    return Finding(
        "software",
        "ok",
        ", ".join([python, *(f"{name} {version}" for name, version in found.items())]),
    )


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Finding("open files", "ok", f"up to {soft:,}")
    can_raise = hard == resource.RLIM_INFINITY or hard >= wanted
    fix = f"run `ulimit -n {wanted}`" if can_raise else f"raise the hard limit, now {hard:,}"
    status: Status = "warn" if soft >= 256 else "fail"
    return Finding("open files", status, f"up to {soft:,}; recommended: {wanted:,}", fix)


def _server(session: Session) -> tuple[list[Finding], Json | None]:
    is_wanted = bool(session.settings.explicit & {"endpoint", "admin"})
    try:
        info = session.admin.info()
    except Failure as failure:
        if failure.exit_code is ExitCode.DENIED:
            denied = Finding("server", "fail", f"{failure.what}: {failure.why}", failure.fix)
            # Troubles are readable without a key, above all the trouble that no operator has a key.
            return [denied, *_troubles(session.admin.readyz())], None
        status: Status = "fail" if is_wanted else "ok"
        detail = f"{failure.what}: {failure.why}" if is_wanted else "no server is running"
        return [Finding("server", status, detail, failure.fix if is_wanted else "")], None
    detail = f"{info.get('state')}, version {info.get('version')}, {session.admin.url}"
    if not info.get("is_ready") and not info.get("reasons"):
        fix = "wait if it is starting or draining, otherwise see its log"
        return [Finding("server", "fail", f"{detail}; not ready", fix)], info
    return [Finding("server", "ok", detail), *_troubles(info)], info


def _troubles(info: Json) -> Iterator[Finding]:
    """Yield the troubles that the server itself reports, in its words."""
    for one in info.get("reasons") or ():
        status: Status = "warn" if one.get("kind") in WARNINGS else "fail"
        yield Finding(one["name"], status, one["text"], one.get("do") or "see the server's log")


def _remote_config(session: Session) -> tuple[list[dict[str, Any]], Finding]:
    try:
        rows = session.admin.config()["settings"]
    except Failure as failure:
        return [], Finding("settings", "warn", f"{failure.what}: {failure.why}", failure.fix)
    return rows, Finding("settings", "ok", f"{len(rows)} in use by the server")


def _local_config(
    data: str | None, config_file: str | None
) -> tuple[list[dict[str, Any]], Finding]:
    explicit = Path(config_file) if config_file is not None else None
    try:
        loaded = node_config.load(
            {"node.data": data}, os.environ, node_config.config_files(explicit)
        )
    except node_config.ConfigInvalid as error:
        return [], Finding("settings", "fail", error.why, error.do)
    rows = [
        {"key": row.key, "value": row.value, "origin": row.origin}
        for row in node_config.describe(loaded)
    ]
    changed = sum(row["origin"] != "default" for row in rows)
    return rows, Finding("settings", "ok", f"{len(rows)}, {changed} differ from the default")


def _ports(values: dict[str, str]) -> Iterator[Finding]:
    """Check that a server could listen on its addresses, by binding to them for an instant."""
    for key in ("http.listen", "admin.listen"):
        text = values.get(key)
        if not text:
            continue
        host, port = node_config.parse_listen(text)
        try:
            family, kind, proto, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            fix = f"stop the process that listens there, or set {key} to another address"
            yield Finding(f"port {text}", "fail", error.strerror or str(error), fix)
        else:
            yield Finding(f"port {text}", "ok", "free")


def _certificates(
    session: Session, info: Json | None, values: dict[str, str], *, is_local: bool
) -> Iterator[Finding]:
    """Check every certificate in use: in files of settings that apply to this machine, in the
    authority that this command trusts, and on the server's listeners."""
    from penstock.cli.operate import expiry

    named = values
    if info is not None:  # the server does not report the base of relative paths
        is_here = is_loopback(session.settings.endpoint)
        named = {k: v for k, v in values.items() if is_here and os.path.isabs(v)}  # noqa: PTH117
    # Not AWS_CA_BUNDLE: that file usually holds the public authorities.
    private = os.environ.get("PENSTOCK_CA_FILE", "")
    yield from expiry.in_files(named, more={"PENSTOCK_CA_FILE": private})
    if not is_local and info is not None:
        kafka = f"{info.get('kafka_protocol')}://{(info.get('endpoints') or {}).get('kafka')}"
        listeners = (session.settings.endpoint, session.admin.url, kafka)
        seen = (as_seen_from(session.admin.url, url) for url in listeners)
        yield from expiry.on_listeners(seen)
    elif not is_local and session.settings.explicit & {"endpoint", "admin"}:
        yield from expiry.on_listeners((session.settings.endpoint, session.settings.admin or ""))


def _disk(folder: Path, reserve_bytes: int, *, is_reported: bool) -> list[Finding]:
    """Check the disk of the data folder, or of its nearest existing parent. ``is_reported``: the
    server has already reported a trouble of its disk."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    name = f"disk {folder}"
    if not place.is_dir():
        return [Finding(name, "fail", f"{place} is not a folder", "choose another --data DIR")]
    usage = shutil.disk_usage(place)
    reserve = reserve_of(usage.total, reserve_bytes)
    detail = f"{size(usage.free)} free; new messages are rejected below {size(reserve)}"
    space = Finding(name, "ok", detail)
    if usage.free <= reserve and not is_reported:
        space = Finding(name, "fail", disk_full_text(usage.free, reserve), DISK_DO)
    elif usage.free < max(2 * reserve, _FREE_WANTED_BYTES) and not is_reported:
        space = Finding(name, "warn", detail, DISK_DO)
    return [space, _fsync(place)]


def _fsync(place: Path) -> Finding:
    times_ms = []
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".penstock-doctor-") as file:
            block = b"\0" * 4_096
            for _ in range(_FSYNC_ROUNDS):
                start_s = time.perf_counter()
                file.write(block)
                file.flush()
                os.fdatasync(file.fileno())
                times_ms.append((time.perf_counter() - start_s) * 1_000)
    except OSError as error:
        fix = "give this user write permission"
        return Finding("fsync", "fail", f"cannot write in {place}: {error.strerror}", fix)
    median_ms = statistics.median(times_ms)
    detail = f"median {median_ms:.2f} ms, worst {max(times_ms):.2f} ms"
    if median_ms > _FSYNC_SLOW_MS:
        return Finding("fsync", "warn", detail, "use a faster disk, or --fsync interval")
    return Finding("fsync", "ok", detail)


def _clock(skew_ms: int | None) -> Finding:
    """``skew_ms``: the server's clock minus ours; None without a server."""
    now_s = time.time()
    if now_s < _EARLIEST_S:
        return Finding("clock", "fail", f"wrong time: {time.ctime(now_s)}", "set the clock (NTP)")
    if skew_ms is None:
        return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s)))
    if abs(skew_ms) > CLOCK_SKEW_MS_MAX:
        text = clock_skew_text("this machine", "the server", skew_ms)
        return Finding("clock", "fail", text, CLOCK_DO)
    return Finding("clock", "ok", f"server and client differ by {skew_ms} ms")
