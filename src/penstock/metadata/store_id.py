"""The random id of a store, kept in the store and reported by every metadata node that uses it. By
this id a node notices that it is served from another store than before, which would be another
catalog at the same address."""

from base64 import urlsafe_b64encode
from collections.abc import Callable

from penstock.metadata.store import Store
from penstock.model.errors import VersionConflict

KEY = "/store"
ID_BYTES = 12


async def store_id(store: Store, entropy: Callable[[int], bytes]) -> str:
    entry = await store.get(KEY)
    if entry is None:
        drawn = urlsafe_b64encode(entropy(ID_BYTES))
        try:
            await store.put(KEY, drawn, if_version=0)
            return drawn.decode()
        except VersionConflict:
            entry = await store.get(KEY)
            assert entry is not None, "the store id is never deleted"
    return entry.value.decode("ascii", "replace")
