"""``penstock doctor``: checks this machine, the configuration and the server.

Without a server the settings are read as ``penstock serve`` would read them. A missing server is a
failure only if its address was given, because the doctor is also used before the first start. Only
the fsync check writes: one small file in the data folder, which it removes."""

import os
import platform
import resource
import shutil
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.broker.context.disk import reserve_of
from penstock.cli.clients.http import as_seen_from, is_loopback
from penstock.cli.command import Session, Verb
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.cli.terminal.output import (
    FINDING_COLUMNS,
    Finding,
    Json,
    Status,
    columns,
    installed_version,
    moment,
)
from penstock.model.troubles import (
    CERTIFICATE_WARN_DAYS,
    CLOCK_DO,
    CLOCK_SKEW,
    CLOCK_SKEW_MS_MAX,
    DISK_DO,
    DISK_FULL,
    WARNINGS,
    Kind,
)
from penstock.model.units import size
from penstock.node.configuration import config as node_config

_CONFIG_COLUMNS = columns("key SETTING, value, origin FROM")
_PACKAGES = ("penstock", "uvloop", "httptools", "msgspec")
_FILES_WANTED = 4_096  # connections and segments of a busy node; the usual limit is 1,024
_FREE_WANTED_BYTES = 1_073_741_824
_FSYNC_ROUNDS = 20
_FSYNC_SLOW_MS = 20.0
# A clock before the release of this program is wrong: 2026-01-01.
_EARLIEST_S = 1_767_225_600
# Settings that name files with certificates.
_CERTIFICATE_KEYS = ("tls.cert_file", "tls.client_ca_file", "internal.certificate", "internal.ca")
# Certificates per file (a longer file is a bundle of CAs, not a chain), and subscriptions.
_LISTED_MAX = 20
_SUBSCRIPTIONS_MAX = 1_000  # to ask about; more would take long
_HANDSHAKE_S = 5.0
_RENEW = "renew it with `penstock generate certs` or your CA; running nodes load the new file"


@click.command(cls=Verb)
@click.option("--data", metavar="DIR", help="data folder [default: from the configuration]")
@click.option("--config", "config_file", metavar="FILE", help="TOML configuration of the server")
@click.option("--local", is_flag=True, help="check only this machine, without contacting a server")
def doctor(session: Session, data: str | None, config_file: str | None, local: bool) -> None:
    """Check this machine, the settings and the server. Exit code 8 if a check fails."""
    findings, config = examine(session, data=data, config_file=config_file, is_local=local)
    checks: list[dict[str, Any]] = [finding._asdict() for finding in findings]
    is_healthy = all(check["status"] != "fail" for check in checks)
    if session.out.is_table:
        session.out.many(checks, columns=FINDING_COLUMNS)
        session.out.line("")
        changed = [row for row in config if row["origin"] != "default"]
        if changed:
            session.out.many(changed, columns=_CONFIG_COLUMNS)
        rest = len(config) - len(changed)
        session.out.line(f"{rest} settings have the default; see `penstock serve --print-config`")
    else:
        item = {"healthy": is_healthy, "checks": checks, "config": config}
        session.out.one(item, name="healthy")
    if not is_healthy:
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def examine(
    session: Session, *, data: str | None, config_file: str | None, is_local: bool
) -> tuple[list[Finding], list[Json]]:
    findings: list[Finding] = [_software(), _open_files()]
    info: Json | None = None
    skew_ms: int | None = None
    rows: list[Json] = []
    if not is_local:
        server, info = _server(session)
        findings += server
    if info is not None:
        if "now_ms" in info:
            skew_ms = round(info["now_ms"] - time.time() * 1_000)
        try:
            rows = session.admin.get("config")["settings"]
            findings.append(Finding("settings", "ok", f"the server uses {len(rows)} settings"))
        except Failure as failure:
            text = f"{failure.what}: {failure.why}"
            findings.append(Finding("settings", "warn", text, failure.fix))
    if not rows:
        rows, found = _local_config(data, config_file)
        findings.append(found)
    if info is not None:
        findings += _subscriptions(session)
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
    return findings, rows


def _software() -> Finding:
    found = {name: installed_version(name) for name in _PACKAGES}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        fix = "install penstock again with its dependencies"
        return Finding("software", "fail", f"packages are missing: {', '.join(missing)}", fix)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    versions = (f"{name} {version}" for name, version in found.items())
    return Finding("software", "ok", ", ".join([python, *versions]))


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
    try:
        info = session.admin.info()
    except Failure as failure:
        text = f"{failure.what}: {failure.why}"
        if failure.exit_code is ExitCode.DENIED:
            denied = Finding("server", "fail", text, failure.fix)
            # Problems can be read without a key, because the problem may be that there is no key.
            return [denied, *_troubles(session.admin.readyz())], None
        if session.settings.explicit & {"endpoint", "admin"}:
            return [Finding("server", "fail", text, failure.fix)], None
        return [Finding("server", "ok", "no server is running")], None
    detail = f"{info.get('state')}, version {info.get('version')}, {session.admin.url}"
    if not info.get("is_ready") and not info.get("reasons"):
        fix = "wait if it is starting or draining, otherwise see its log"
        return [Finding("server", "fail", f"{detail}; not ready", fix)], info
    return [Finding("server", "ok", detail), *_troubles(info)], info


def _troubles(info: Json) -> Iterator[Finding]:
    for one in info.get("reasons") or ():
        status: Status = "warn" if one.get("kind") in WARNINGS else "fail"
        yield Finding(one["name"], status, one["text"], one.get("do") or "see the server's log")


def _subscriptions(session: Session) -> list[Finding]:
    """Name the first subscriptions that fail, are paused or are not permitted."""
    try:
        found = list(islice(session.admin.subscriptions(status="true"), _SUBSCRIPTIONS_MAX))
    except Failure:
        return []  # an older server, or no right to see subscriptions
    findings = [_subscription(one) for one in found]
    bad = [finding for finding in findings if finding is not None]
    if found and not bad:
        return [Finding("subscriptions", "ok", f"none of {len(found):,} is paused or fails")]
    return bad[:_LISTED_MAX]


def _subscription(one: Json) -> Finding | None:
    name, place = f"subscription {one['id']}", f"{one['source']} to {one['endpoint']}"
    status = one.get("status") or {}
    if one["paused"] is not None:
        fix = f"resume it with `penstock subscription resume {one['id']}`"
        return Finding(name, "warn", f"{place} is paused: {one['paused']}", fix)
    if one.get("refusal") is not None:
        fix = f"ask it again with `penstock subscription confirm {one['id']}`"
        return Finding(name, "warn", f"{place} is not permitted: {one['refusal']}", fix)
    since_ms = status.get("failing_since_ms")
    if since_ms:
        text = f"{place} has failed since {moment(since_ms)}: {status.get('reason')}"
        fix = f"see `penstock subscription deliveries {one['id']}`"
        return Finding(name, "warn", text, fix)
    return None


def _local_config(data: str | None, config_file: str | None) -> tuple[list[Json], Finding]:
    files = node_config.config_files(Path(config_file) if config_file is not None else None)
    try:
        loaded = node_config.load({"node.data": data}, os.environ, files)
    except node_config.ConfigInvalid as error:
        return [], Finding("settings", "fail", error.why, error.do)
    rows = [
        {"key": row.key, "value": row.value, "origin": row.origin}
        for row in node_config.describe(loaded)
    ]
    changed = sum(row["origin"] != "default" for row in rows)
    return rows, Finding("settings", "ok", f"{len(rows)} settings, {changed} not the default")


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


def _disk(folder: Path, reserve_bytes: int, *, is_reported: bool) -> Iterator[Finding]:
    """Check free space and fsync. If ``is_reported``, the server already reports low space."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    name = f"disk {folder}"
    if not place.is_dir():
        yield Finding(name, "fail", f"{place} is not a folder", "choose another --data DIR")
        return
    usage = shutil.disk_usage(place)
    reserve = reserve_of(usage.total, reserve_bytes)
    detail = f"{size(usage.free)} free; new messages are rejected below {size(reserve)}"
    if usage.free <= reserve and not is_reported:
        full = DISK_FULL.filled(free_bytes=usage.free, reserve_bytes=reserve)
        yield Finding(name, "fail", full.text, DISK_DO)
    elif usage.free < max(2 * reserve, _FREE_WANTED_BYTES) and not is_reported:
        yield Finding(name, "warn", detail, DISK_DO)
    else:
        yield Finding(name, "ok", detail)
    yield _fsync(place)


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
    """Check the clock. ``skew_ms`` is server time minus local time, or None without a server."""
    now_s = time.time()
    if now_s < _EARLIEST_S:
        return Finding(
            "clock", "fail", f"the time is wrong: {time.ctime(now_s)}", "set the clock (NTP)"
        )
    if skew_ms is None:
        return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s)))
    if abs(skew_ms) > CLOCK_SKEW_MS_MAX:
        places = "this machine and the server"
        found = CLOCK_SKEW.filled(places=places, skew_ms=abs(skew_ms))
        return Finding("clock", "fail", found.text, CLOCK_DO)
    return Finding("clock", "ok", f"the clocks of server and client differ by {skew_ms} ms")


# ── Certificates: how long they are still valid ──────────────────────────────────────────────
# Checked are the files named by settings of this machine, the file PENSTOCK_CA_FILE, and the
# server's listeners. The warning comes a month before the certificate expires.


def _certificates(
    session: Session, info: Json | None, values: dict[str, str], *, is_local: bool
) -> Iterator[Finding]:
    named, settings = values, session.settings
    if info is not None:  # relative paths cannot be resolved here
        is_here = is_loopback(settings.endpoint)
        named = {k: v for k, v in values.items() if is_here and os.path.isabs(v)}  # noqa: PTH117
    # Not AWS_CA_BUNDLE: that file usually holds the public authorities.
    private = os.environ.get("PENSTOCK_CA_FILE", "")
    yield from in_files(named, more={"PENSTOCK_CA_FILE": private})
    if not is_local and info is not None:
        kafka = f"{info.get('kafka_protocol')}://{(info.get('endpoints') or {}).get('kafka')}"
        listeners = (settings.endpoint, session.admin.url, kafka)
        yield from on_listeners(as_seen_from(session.admin.url, url) for url in listeners)
    elif not is_local and settings.explicit & {"endpoint", "admin"}:
        yield from on_listeners((settings.endpoint, settings.admin or ""))


def in_files(settings: Mapping[str, str], *, more: Mapping[str, str]) -> Iterator[Finding]:
    named = {key: settings.get(key, "") for key in _CERTIFICATE_KEYS} | dict(more)
    now = datetime.now(UTC)
    for name, path in named.items():
        if not path:
            continue
        try:
            found = x509.load_pem_x509_certificates(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "the file has no certificate"
            yield Finding(f"certificate {name}", "fail", f"{path}: {why}", "set it to a PEM file")
            continue
        for certificate in found[:_LISTED_MAX]:
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            who = f"{names[0].value!s:.64}" if names else f"{certificate.serial_number:x}"
            yield judged(f"{name} ({who})", certificate, now)


def on_listeners(urls: Iterable[str]) -> Iterator[Finding]:
    now = datetime.now(UTC)
    for url in dict.fromkeys(urls):
        scheme, _, _ = url.partition("://")
        parts = urlsplit(f"//{url.rpartition('://')[2]}")
        if not scheme.lower().endswith(("https", "ssl")) or not parts.hostname:
            continue
        address = (parts.hostname, parts.port or 443)
        try:
            pem = ssl.get_server_certificate(address, timeout=_HANDSHAKE_S)
            certificate = x509.load_pem_x509_certificate(pem.encode())
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            yield Finding(f"certificate {url}", "fail", f"the listener has no certificate: {why}")
            continue
        yield judged(url, certificate, now)


def judged(place: str, certificate: x509.Certificate, now: datetime) -> Finding:
    name = f"certificate {place}"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= end:
        detail = f"expired {(now - end).days} days ago, on {end:%Y-%m-%d}"
        return Finding(name, "fail", detail, _RENEW)
    if now < begin:
        fix = "set the clock (NTP), or wait"
        return Finding(name, "fail", f"not valid before {begin:%Y-%m-%d %H:%M} UTC", fix)
    left = (end - now).days
    detail = f"{left} days left, until {end:%Y-%m-%d}"
    if left < CERTIFICATE_WARN_DAYS:
        return Finding(name, "warn", detail, _RENEW)
    return Finding(name, "ok", detail)
