"""Which metadata store a node belongs to, once it has met one.

Logs are named by the ids of topics, and those are drawn by whoever makes a topic: against another
store's catalog every log of this node would be nobody's. So the first store that answers is written
down, and a metadata node that stands for another one is refused from then on, be it that somebody
mistyped an address or gave two metadata processes a store each.
"""

from pathlib import Path

from penstock.wire.internal.faults import HelloRefused
from penstock.wire.internal.frame import Hello

FILE_NAME = "metadata-id"
_FEATURE = "store="


def store_feature(store_id: str) -> str:
    """What a metadata node says of its store when it greets."""
    return _FEATURE + store_id


class StorePin:
    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        try:
            self.store_id = self._file.read_text("ascii").strip()
        except FileNotFoundError:
            self.store_id = ""

    def check(self, hello: Hello) -> None:
        """For a client's ``check_hello``. Raises HelloRefused."""
        told = next((one for one in hello.features if one.startswith(_FEATURE)), "")
        found = told.removeprefix(_FEATURE)
        if not found:
            raise HelloRefused(f"Node {hello.node_id} is no metadata node.")
        if not self.store_id:
            new = self._file.with_suffix(".new")
            new.write_text(found + "\n", "ascii", errors="replace")
            new.replace(self._file)
            self.store_id = found
        elif found != self.store_id:
            raise HelloRefused(
                f"Node {hello.node_id} keeps another store ({found}) than the one this node belongs"
                f" to ({self.store_id}). Of several metadata processes one keeps the store, and the"
                " others are started with --metadata and its address"
            )
