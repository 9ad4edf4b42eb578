"""An etcd is what it was when it was saved, and then what it was before that."""

from __future__ import annotations

import base64
import http.client
import json
from pathlib import Path

import pytest
from tests.harness.etcd import LACKING as NO_ETCD
from tests.harness.etcd import EtcdCluster
from tests.lab.etcd_files import LACKING, EtcdFiles

pytestmark = pytest.mark.skipif(bool(NO_ETCD or LACKING), reason=str(NO_ETCD or LACKING))


def value(etcd: EtcdCluster, key: bytes) -> bytes | None:
    connection = http.client.HTTPConnection(etcd.endpoints[0], timeout=5)
    try:
        connection.request(
            "POST", "/v3/kv/range", json.dumps({"key": base64.b64encode(key).decode()})
        )
        found = json.loads(connection.getresponse().read()).get("kvs", [])
    finally:
        connection.close()
    return base64.b64decode(found[0]["value"]) if found else None


def test_a_backup_is_restored_and_what_was_there_comes_back(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd") as etcd:
        files = EtcdFiles(etcd, tmp_path / "etcd")
        etcd.put(b"/a", b"1")
        files.save()
        revision = etcd.put(b"/a", b"2")
        files.restore()
        assert value(etcd, b"/a") == b"1"
        assert etcd.revision() < revision
        etcd.put(b"/b", b"written to the wrong one")
        files.put_back()
        assert value(etcd, b"/a") == b"2"
        assert value(etcd, b"/b") is None
        assert etcd.revision() >= revision
