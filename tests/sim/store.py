"""The coordination store of a simulated cluster: one partition's row, the nodes' registrations, and
every version of the row there ever was, because nodes may look at old ones."""

from penstock.replication.row import Change, PartitionRow, View


class SimStore:
    def __init__(self, row: PartitionRow) -> None:
        self.revision = 1
        self.incarnations: dict[int, int] = {}
        self.views = [View(1, 1, row)]

    @property
    def view(self) -> View:
        """As a linearizable read at this moment gives it."""
        last = self.views[-1]
        return View(self.revision, last.version, last.row)

    @property
    def row(self) -> PartitionRow:
        return self.views[-1].row

    def swap(self, change: Change) -> bool:
        if change.version != self.views[-1].version:
            return False
        if any(self.incarnations.get(node) != n for node, n in change.incarnations.items()):
            return False
        self.revision += 1
        self.views.append(View(self.revision, self.revision, change.row))
        return True

    def register(self, node: int) -> int:
        self.revision += 1
        self.incarnations[node] = self.revision
        return self.revision

    def unregister(self, node: int) -> None:
        if self.incarnations.pop(node, None) is not None:
            self.revision += 1
