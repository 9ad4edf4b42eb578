"""A real etcd under a test's control: one member or three, on loopback ports of their own or each
where a test has put it, with or without certificates.

What is asked of it here goes over its HTTP gateway, so that no test judges our client by our
client. Elections are quick, for tests that wait for one; everything else is as it comes. Processes
are ended by their id, and only those that were started here."""

from __future__ import annotations

import base64
import datetime
import http.client
import ipaddress
import json
import os
import platform
import shutil
import signal
import ssl
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.harness.children import end_with_parent
from tests.harness.patience import eventually
from tests.harness.server import stable_port

ETCD = shutil.which("etcd")
LACKING = None if ETCD else "etcd is not installed (Debian: etcd-server)"
HEALTHY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
HEARTBEAT_MS = 100  # its own defaults: members pause on a busy machine
ELECTION_MS = 1_000


class Certificates:
    """An authority of one's own, and what it has issued: for members and for clients alike."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        self.ca = folder / "ca.pem"
        own = self._sign(self._name, self._key, is_authority=True)
        self.ca.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of somebody on this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, is_authority=False)
        cert_path, key_path = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return cert_path, key_path

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(here), critical=False)
            .sign(self._key, hashes.SHA256())
        )


class EtcdCluster:
    def __init__(
        self,
        folder: Path,
        *,
        members: int = 1,
        tls: bool = False,
        hosts: Sequence[str] = (),
        enter: Sequence[Sequence[str]] = (),
    ) -> None:
        """``hosts``: the members' addresses; ``enter``: what stands before each one's command."""
        assert ETCD is not None, LACKING
        self.hosts = list(hosts) or ["127.0.0.1"] * members
        self._enter = [list(each) for each in enter] or [[] for _ in range(members)]
        self._folder = folder
        self._ports = [stable_port() for _ in range(members)]
        self._peer_ports = [stable_port() for _ in range(members)]
        assert len({*self._ports, *self._peer_ports}) == 2 * members, "a port was drawn twice"
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        self._stopped: set[int] = set()
        self.certificates = Certificates(folder / "certificates") if tls else None
        if self.certificates is not None:
            self.certificates.issue("member")
            self.cert, self.key = self.certificates.issue("client")

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(f"{host}:{port}" for host, port in zip(self.hosts, self._ports, strict=True))

    def __enter__(self) -> EtcdCluster:
        try:
            for member in range(len(self._ports)):
                self._start(member)
            self.wait_healthy()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for member, process in enumerate(self._processes):
            if process is not None:
                self._end(member, signal.SIGKILL)

    # ── What is done to members ──────────────────────────────────────────────────────────────

    def kill(self, member: int) -> None:
        self._end(member, signal.SIGKILL)

    def stop(self, member: int) -> None:
        """It keeps its connections and does nothing any more."""
        process = self._running(member)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # until then it may answer
        self._stopped.add(member)

    def cont(self, member: int) -> None:
        self._running(member).send_signal(signal.SIGCONT)
        self._stopped.discard(member)

    def restart(self, member: int) -> None:
        """With the data it had."""
        if self._processes[member] is not None:
            self._end(member, signal.SIGKILL)
        self._start(member)

    def heal(self) -> None:
        """Everybody runs and is well again."""
        for member, process in enumerate(self._processes):
            if process is None:
                self._start(member)
            elif member in self._stopped:
                self.cont(member)
        self.wait_healthy()

    def _running(self, member: int) -> subprocess.Popen[bytes]:
        process = self._processes[member]
        assert process is not None, f"member {member} does not run"
        return process

    def _end(self, member: int, how: signal.Signals) -> None:
        process = self._running(member)
        self._processes[member] = None
        self._stopped.discard(member)
        process.send_signal(how)
        process.wait(STOP_SECONDS_MAX)

    def _start(self, member: int) -> None:
        scheme = "http" if self.certificates is None else "https"
        client = f"{scheme}://{self.hosts[member]}:{self._ports[member]}"
        peer = f"http://{self.hosts[member]}:{self._peer_ports[member]}"
        everybody = ",".join(
            f"m{one}=http://{self.hosts[one]}:{port}" for one, port in enumerate(self._peer_ports)
        )
        options = {
            "name": f"m{member}",
            "data-dir": str(self._folder / f"m{member}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": everybody,
            "heartbeat-interval": str(HEARTBEAT_MS),
            "election-timeout": str(ELECTION_MS),
        }
        if self.certificates is not None:
            folder = self.certificates.ca.parent
            options["cert-file"] = str(folder / "member.pem")
            options["key-file"] = str(folder / "member.key")
            options["trusted-ca-file"] = str(self.certificates.ca)
            options["client-cert-auth"] = "true"
        env = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
        if platform.machine() in ("aarch64", "arm64"):
            env["ETCD_UNSUPPORTED_ARCH"] = "arm64"  # version 3.4 wants to hear that
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"m{member}.log").open("ab") as log:
            self._processes[member] = subprocess.Popen(
                [
                    *self._enter[member],
                    str(ETCD),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                preexec_fn=end_with_parent(),
            )

    # ── What is asked of it ──────────────────────────────────────────────────────────────────

    def wait_healthy(self, *, seconds: float = HEALTHY_SECONDS_MAX) -> None:
        """Until every member that runs serves reads that are up to date."""
        for member, process in enumerate(self._processes):
            if process is not None and member not in self._stopped:
                eventually(
                    partial(self._is_healthy, member),
                    seconds=seconds,
                    what=f"etcd healthy; {self._last_words(member)}",
                )

    def leader(self) -> int:
        """The member that leads, once one does."""
        return eventually(self._leading, seconds=HEALTHY_SECONDS_MAX, what="a leader of etcd") - 1

    def _leading(self) -> int:
        """Its number and one; 0 while nobody leads."""
        for member, process in enumerate(self._processes):
            if process is not None and member not in self._stopped:
                try:
                    status = self._post(member, "/v3/maintenance/status", {})
                except (OSError, http.client.HTTPException, ValueError):
                    continue  # it has just come, or is just going
                if status["header"]["member_id"] == status.get("leader"):
                    return member + 1
        return 0

    def revision(self) -> int:
        key = base64.b64encode(b"/").decode()
        found = self._post(self._any(), "/v3/kv/range", {"key": key})
        return int(found["header"]["revision"])

    def put(self, key: bytes, value: bytes) -> int:
        """By somebody else, past any namespace. The revision."""
        body = {
            name: base64.b64encode(text).decode() for name, text in (("key", key), ("value", value))
        }
        return int(self._post(self._any(), "/v3/kv/put", body)["header"]["revision"])

    def entries(self) -> dict[str, bytes]:
        """All keys with their values, past any namespace."""
        everything = base64.b64encode(b"\0").decode()
        body = {"key": everything, "range_end": everything}
        found = self._post(self._any(), "/v3/kv/range", body).get("kvs", [])
        return {
            base64.b64decode(each["key"]).decode(): base64.b64decode(each.get("value", ""))
            for each in found
        }

    def delete(self, key: bytes) -> None:
        body = {"key": base64.b64encode(key).decode()}
        self._post(self._any(), "/v3/kv/deleterange", body)

    def compact(self, revision: int) -> None:
        self._post(self._any(), "/v3/kv/compaction", {"revision": revision, "physical": True})

    def require_login(self) -> None:
        """From now on nobody is answered who does not say who he is."""
        user = {"name": "root", "password": "a password"}
        self._post(self._any(), "/v3/auth/user/add", user)
        self._post(self._any(), "/v3/auth/role/add", {"name": "root"})
        self._post(self._any(), "/v3/auth/user/grant", {"user": "root", "role": "root"})
        self._post(self._any(), "/v3/auth/enable", {})

    def _any(self) -> int:
        return next(
            member
            for member, process in enumerate(self._processes)
            if process is not None and member not in self._stopped
        )

    def _is_healthy(self, member: int) -> bool:
        code = self._running(member).poll()
        assert code is None, f"etcd ended with {code}: {self._last_words(member)}"
        try:
            return self._request(member, "GET", "/health", None).get("health") == "true"
        except (OSError, http.client.HTTPException, ValueError):
            return False

    def _post(self, member: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._request(member, "POST", path, json.dumps(body))

    def _request(self, member: int, verb: str, path: str, body: str | None) -> dict[str, Any]:
        host, port = self.hosts[member], self._ports[member]
        if self.certificates is None:
            connection = http.client.HTTPConnection(host, port, timeout=5)
        else:
            context = ssl.create_default_context(cafile=self.certificates.ca)
            context.load_cert_chain(self.cert, self.key)
            connection = http.client.HTTPSConnection(host, port, timeout=5, context=context)
        try:
            connection.request(verb, path, body)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status in (200, 503), f"{verb} {path}: {answer.status} {text!r}"
            return dict(json.loads(text))
        finally:
            connection.close()

    def _last_words(self, member: int) -> str:
        lines = (self._folder / f"m{member}.log").read_text("utf-8", "replace").splitlines()
        return " | ".join(lines[-5:])
