"""Turn an error that ended a start into what the operator reads: what happened, why, what to do."""

import sqlite3
from collections.abc import Mapping
from typing import Final

from penstock.membership.cluster_level import LevelRefused
from penstock.metadata.store import StoreUnreachable, StoreUnusable
from penstock.model.errors import PenstockError, SetupError

# Advice for errors that bring none, by the nearest base class.
_DO: Final[Mapping[type[Exception], str]] = {
    LevelRefused: "run a version that supports the feature level of the cluster: `penstock cluster"
    " status`",
    StoreUnreachable: "start etcd or the metadata service, and check the network to it; check its"
    " address in the settings",
    StoreUnusable: "check the metadata store, or restore a backup: `penstock backup restore`",
    sqlite3.Error: "check the disk, or restore a backup: `penstock backup restore`",
    OSError: "check that this user can read and write the file: `penstock doctor --local`",
    Exception: "check this machine and its settings: `penstock doctor --local`",
}


def explained(error: Exception) -> SetupError:
    if isinstance(error, SetupError) and error.do:
        return error
    do = next(_DO[kind] for kind in type(error).__mro__ if kind in _DO)
    if isinstance(error, SetupError):
        return SetupError(error.why, do, what=error.what, code=error.code)
    why = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        why = f"{error.filename}: {error.strerror}"
    assert isinstance(error, PenstockError | OSError), "others are bugs"
    return SetupError(why, do)
