"""What an operator does to an etcd as a whole: save it, restore it from what was saved, and put its
own data back. By etcd's own program, while no member runs; members come back under the names and
addresses they had."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.harness.etcd import EtcdCluster

ETCDCTL = shutil.which("etcdctl")
LACKING = None if ETCDCTL else "etcdctl is not installed (Debian: etcd-client)"
PROGRAM_SECONDS_MAX = 60


class EtcdFiles:
    def __init__(self, etcd: EtcdCluster, folder: Path) -> None:
        """``folder``: in which each member has one, by its name."""
        self._etcd = etcd
        self._folder = folder
        self._saved = folder / "saved.db"
        self._peers = self._ask_peers()
        self._is_restored = False

    def save(self) -> None:
        self._saved.unlink(missing_ok=True)
        _run("--endpoints", self._etcd.endpoints[0], "snapshot", "save", str(self._saved))

    def restore(self) -> None:
        """The members' data are put aside, and they begin again with what was saved."""
        self._end()
        everybody = ",".join(f"{name}={url}" for name, url in self._peers.items())
        for name, url in self._peers.items():
            own = self._folder / name
            own.rename(self._aside(name))
            _run(
                *("snapshot", "restore", str(self._saved), "--data-dir", str(own), "--name", name),
                *("--initial-cluster", everybody, "--initial-advertise-peer-urls", url),
            )
        self._is_restored = True
        self._etcd.heal()

    def put_back(self) -> None:
        """As it was before ``restore``. What was written since is gone."""
        if self._is_restored:
            self._end()
            for name in self._peers:
                shutil.rmtree(self._folder / name, ignore_errors=True)
                self._aside(name).rename(self._folder / name)
            self._is_restored = False
        self._etcd.heal()

    def _aside(self, name: str) -> Path:
        return self._folder / f"{name}.aside"

    def _end(self) -> None:
        for member in range(len(self._etcd.endpoints)):
            self._etcd.kill(member)

    def _ask_peers(self) -> dict[str, str]:
        """Name → address for other members."""
        connection = http.client.HTTPConnection(self._etcd.endpoints[0], timeout=5)
        try:
            connection.request("POST", "/v3/cluster/member/list", "{}")
            told: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return {one["name"]: one["peerURLs"][0] for one in told["members"]}


def _run(*arguments: str) -> None:
    assert ETCDCTL is not None, LACKING
    done = subprocess.run(
        [ETCDCTL, *arguments],
        env={**os.environ, "ETCDCTL_API": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS_MAX,
    )
    assert done.returncode == 0, f"etcdctl {' '.join(arguments)}: {done.stderr.strip()}"
