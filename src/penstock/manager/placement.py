"""Where replicas belong. Pure: plain values in, plain values out, the same for the same.

A partition's first replica is the one that should lead it, so the order is part of the answer.
Three things are evened out, in this order, and a later one never undoes an earlier one: the racks
of one partition, the replicas of nodes, the leaders of nodes. Every single step makes one of those
better and none worse: that is why planning on top of a plan changes nothing, and why nothing ever
swings between two places.

A node that is not there keeps what it has: it is probably being restarted, and copying its data
elsewhere would be wasted by the time it is done. Whoever knows that it will not come back drains
it. How many moves run at a time, and what each of them does to a row, is for ``moving.py``.

New partitions are spread topic by topic: a busy topic that one node leads alone has no more than
that node's cores, however even the nodes are as a whole.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from penstock.metadata.cluster_entries import PartitionKey

T = TypeVar("T")


class Host(NamedTuple):
    """A node that is alive."""

    node: int
    rack: str = ""
    is_open: bool = True  # takes and gives replicas: it is neither leaving nor to be drained


class Placed(NamedTuple):
    """Where a partition is, or is on its way to."""

    replicas: tuple[int, ...]
    wanted: int  # how many replicas there shall be
    is_fixed: bool = False  # not to be moved for the sake of balance now
    weak: frozenset[int] = frozenset()  # of the replicas, those not up to date or not alive
    has: frozenset[int] = frozenset()  # nodes that have it all the same, until it has moved


class Loads:
    """How much is on which node, by the rows' own order of preference."""

    def __init__(self) -> None:
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        # Who stands behind whom: when a node falls, its partitions scatter over all the others
        # only if not all of them have the same one next in line.
        self.seconds: Counter[tuple[int, int]] = Counter()
        self.of_topics: Counter[tuple[str, int]] = Counter()  # leaders: by topic id and node

    def add(self, topic_id: str, replicas: Sequence[int]) -> None:
        self.replicas.update(replicas)
        self.leaders[replicas[0]] += 1
        self.of_topics[topic_id, replicas[0]] += 1
        if len(replicas) > 1:
            self.seconds[replicas[0], replicas[1]] += 1

    def remove(self, topic_id: str, replicas: Sequence[int]) -> None:
        for node in replicas:
            _decrease(self.replicas, node)
        _decrease(self.leaders, replicas[0])
        _decrease(self.of_topics, (topic_id, replicas[0]))
        if len(replicas) > 1:
            _decrease(self.seconds, (replicas[0], replicas[1]))

    def leading(self, topic_id: str, nodes: Sequence[int]) -> int:
        """Who should lead one more partition of a topic: whoever leads the least of it, and of
        those the one that has the least of everything."""
        return min(
            nodes,
            key=lambda node: (
                self.of_topics[topic_id, node],
                self.replicas[node],
                self.leaders[node],
                node,
            ),
        )

    def order(self, first: int, nodes: Sequence[int]) -> tuple[int, ...]:
        """The same nodes, behind the first the one that is least often next to it."""
        others = sorted(node for node in nodes if node != first)
        if others:
            second = min(others, key=lambda node: (self.seconds[first, node], node))
            others.remove(second)
            others.insert(0, second)
        return (first, *others)


def _decrease(counts: Counter[T], key: T) -> None:
    counts[key] -= 1
    assert counts[key] >= 0, "only what was counted goes"
    if not counts[key]:
        del counts[key]


def choose(hosts: Sequence[Host], loads: Loads, topic_id: str, *, count: int) -> tuple[int, ...]:
    """Replicas for a new partition: as many as asked for, or as there are hosts for. The leader is
    chosen first, or nodes that are never the emptiest would never be chosen to lead a topic."""
    if not hosts or count < 1:
        return ()
    racks = _Racks(hosts)
    first = loads.leading(topic_id, [host.node for host in hosts])
    chosen = [first]
    # Those that lead more of the topic follow rather than those whose turn to lead is yet to come:
    # these are then the emptiest when it comes, and neither evenness costs the other.
    hosts = sorted(hosts, key=lambda host: (-loads.of_topics[topic_id, host.node], host.node))
    while len(chosen) < min(count, len(hosts)):
        chosen.append(_least(hosts, racks, loads.replicas, chosen))
    return loads.order(first, chosen)


class _Racks:
    """A node that names no rack, or is not there to name it, is a rack of its own."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._of = {host.node: host.rack for host in hosts if host.rack}

    def __bool__(self) -> bool:
        return bool(self._of)

    def of(self, node: int) -> str | int:
        return self._of.get(node, node)

    def shared(self, node: int, others: Iterable[int]) -> int:
        """How many of the others are in its rack."""
        rack = self.of(node)
        return sum(self.of(other) == rack for other in others)

    def fewest(self, others: Iterable[int], racks: Collection[str | int]) -> int:
        """How many of the others are in that of these racks that has the fewest of them."""
        counts = Counter(self.of(other) for other in others)
        return 0 if len(racks) > len(counts) else min(counts[rack] for rack in racks)


def _least(
    hosts: Iterable[Host],
    racks: _Racks,
    counts: Mapping[int, int],
    others: Sequence[int],
    *,
    has: frozenset[int] = frozenset(),
) -> int:
    """Of the hosts that are none of the others, the best one to join them: rather one that has it
    anyway, and among equals the first."""
    return min(
        (host.node for host in hosts if host.node not in others),
        key=lambda node: (racks.shared(node, others), node not in has, counts.get(node, 0)),
    )


def plan(
    partitions: Mapping[PartitionKey, Placed],
    hosts: Sequence[Host],
    *,
    draining: frozenset[int] = frozenset(),
    is_balancing: bool = True,
    steps_max: int | None = None,
) -> dict[PartitionKey, tuple[int, ...]]:
    """Where partitions should be that are elsewhere, or are too few. With ``steps_max`` each kind
    of change stops after so many: the rest is planned when those have been carried out."""
    work = _Plan(partitions, hosts, draining, steps_max=steps_max)
    is_repaired = work.repair()
    # Balance is not looked for before repairs are through: they change what it would look at.
    if is_balancing and is_repaired:
        work.spread_racks()
        work.even_replicas()
        work.even_leaders()
    return work.moved()


class _Plan:
    def __init__(
        self,
        partitions: Mapping[PartitionKey, Placed],
        hosts: Sequence[Host],
        draining: frozenset[int],
        *,
        steps_max: int | None,
    ) -> None:
        self._partitions = partitions
        self._keys = sorted(partitions)
        self._places = {key: partitions[key].replicas for key in self._keys}
        self._racks = _Racks(hosts)
        self._open = sorted(each for each in hosts if each.is_open and each.node not in draining)
        self._open_racks = {self._racks.of(each.node) for each in self._open}
        self._draining = draining
        self._steps_max = steps_max
        # Of open nodes only: what is on others neither comes nor goes. Dictionaries as sets that
        # keep their order, so that every manager plans the same.
        self._on: dict[int, dict[PartitionKey, None]] = {each.node: {} for each in self._open}
        self._led: Counter[tuple[str, int]] = Counter()  # by topic id and node
        for key in self._keys:
            self._led[key.topic_id, self._places[key][0]] += 1
            for node in self._places[key]:
                if node in self._on:
                    self._on[node][key] = None

    def moved(self) -> dict[PartitionKey, tuple[int, ...]]:
        return {
            key: place
            for key, place in self._places.items()
            if place != self._partitions[key].replicas
        }

    def _load(self, node: int) -> int:
        return len(self._on[node])

    def _loads(self) -> dict[int, int]:
        return {node: len(keys) for node, keys in self._on.items()}

    def _put(self, key: PartitionKey, place: tuple[int, ...]) -> None:
        assert len(set(place)) == len(place), "a node has a partition once"
        for node in self._places[key]:
            if node in self._on:
                self._on[node].pop(key, None)
        for node in place:
            if node in self._on:
                self._on[node][key] = None
        self._led[key.topic_id, self._places[key][0]] -= 1
        self._led[key.topic_id, place[0]] += 1
        self._places[key] = place

    # ── As many as wanted, and none on nodes that are to be empty ────────────────────────────

    def repair(self) -> bool:
        """Whether that is all."""
        steps = 0
        for key in self._keys:
            place = self._repaired(key)
            if place != self._places[key]:
                self._put(key, place)
                steps += 1
                if steps == self._steps_max:
                    return False
        return True

    def _repaired(self, key: PartitionKey) -> tuple[int, ...]:
        replicas = self._places[key]
        wanted = self._partitions[key].wanted
        kept = [node for node in replicas if node not in self._draining]
        if len(kept) == wanted == len(replicas):
            return replicas
        while len(kept) > wanted:
            kept.remove(self._least_needed(key, kept))
        if len(kept) == wanted:
            return tuple(kept)
        loads = self._loads()
        chosen: list[int] = []
        while len(kept) + len(chosen) < wanted:
            others = [*kept, *chosen]
            if all(host.node in others for host in self._open):
                break
            has = self._partitions[key].has
            chosen.append(_least(self._open, self._racks, loads, others, has=has))
        return self._substituted(replicas, kept, chosen, wanted)

    def _least_needed(self, key: PartitionKey, kept: Sequence[int]) -> int:
        weak = self._partitions[key].weak
        return max(
            kept,
            key=lambda node: (
                node in weak,
                self._racks.shared(node, kept),
                len(self._on.get(node, ())),
                node,
            ),
        )

    def _substituted(
        self, replicas: Sequence[int], kept: Sequence[int], chosen: Sequence[int], wanted: int
    ) -> tuple[int, ...]:
        """Whoever comes takes the place of whoever goes. Without enough nodes to come, as many of
        those that should go stay, behind the others: fewer copies would be worse."""
        draining = [node for node in replicas if node in self._draining]
        staying = draining[: max(0, wanted - len(kept) - len(chosen))]
        coming = deque(chosen)
        place: list[int] = []
        for node in replicas:
            if node in kept:
                place.append(node)
            elif node in self._draining and node not in staying and coming:
                place.append(coming.popleft())
        return (*place, *coming, *staying)

    # ── Racks ────────────────────────────────────────────────────────────────────────────────

    def spread_racks(self) -> None:
        if not self._racks:
            return
        steps = 0
        for key in self._keys:
            if self._partitions[key].is_fixed:
                continue
            while (better := self._spread(key)) is not None:
                self._put(key, better)
                steps += 1
                if steps == self._steps_max:
                    return

    def _spread(self, key: PartitionKey) -> tuple[int, ...] | None:
        """With one replica in a rack that has fewer of them. None when that is nowhere."""
        place = self._places[key]
        if len({self._racks.of(node) for node in place}) == len(place):
            return None  # nearly always, and then no host has to be looked at
        giving = [node for node in place if node in self._on]
        giving.sort(key=lambda node: (-self._racks.shared(node, place), -self._load(node), node))
        for node in giving:
            others = [each for each in place if each != node]
            if self._racks.shared(node, others) <= self._racks.fewest(others, self._open_racks):
                continue  # no rack has fewer of them
            if all(host.node in place for host in self._open):
                return None
            taking = _least(
                [host for host in self._open if host.node not in place],
                self._racks,
                self._loads(),
                others,
            )
            if self._racks.shared(taking, others) < self._racks.shared(node, others):
                return _replaced(place, node, taking)
        return None

    # ── Replicas ─────────────────────────────────────────────────────────────────────────────

    def even_replicas(self) -> None:
        steps = 0
        while steps != self._steps_max and self._even_one():
            steps += 1

    def _even_one(self) -> bool:
        """From the fullest node to the emptiest; if nothing can go that way, from and to others
        that are more than one apart."""
        order = sorted(self._on, key=lambda node: (self._load(node), node))
        for giving in reversed(order):
            for taking in order:
                if self._load(giving) - self._load(taking) < 2:
                    break
                key = self._movable(giving, taking)
                if key is not None:
                    self._put(key, _replaced(self._places[key], giving, taking))
                    return True
        return False

    def _movable(self, giving: int, taking: int) -> PartitionKey | None:
        """Rather one that the giving node does not lead: then nobody's leader changes. Else one of
        the topic that it leads most of, beside the taking one."""
        led: PartitionKey | None = None
        led_more = 0
        for key in self._on[giving]:
            if self._partitions[key].is_fixed or key in self._on[taking]:
                continue
            place = self._places[key]
            others = [node for node in place if node != giving]
            if self._racks.shared(taking, others) > self._racks.shared(giving, others):
                continue
            if place[0] != giving:
                return key
            more = self._led[key.topic_id, giving] - self._led[key.topic_id, taking]
            if led is None or more > led_more:
                led, led_more = key, more
        return led

    # ── Leaders ──────────────────────────────────────────────────────────────────────────────

    def even_leaders(self) -> None:
        """By handing leaders on along a chain of nodes, from one that leads too many to one that
        leads too few: a direct exchange is not always there."""
        # What the first node leads and the second one has too.
        shared: dict[int, dict[int, dict[PartitionKey, None]]] = {node: {} for node in self._on}
        led = dict.fromkeys(self._on, 0)
        for key in self._keys:
            first = self._places[key][0]
            if first in led:
                led[first] += 1
                if not self._partitions[key].is_fixed:
                    self._share(shared, key)
        steps = 0
        while steps != self._steps_max:
            chain = self._chain(shared, led)
            if chain is None:
                return
            for giving, taking in pairwise(chain):
                self._hand_over(shared, giving, taking)
            led[chain[0]] -= 1
            led[chain[-1]] += 1
            steps += 1

    def _share(
        self, shared: dict[int, dict[int, dict[PartitionKey, None]]], key: PartitionKey
    ) -> None:
        first, *others = self._places[key]
        for node in others:
            if node in shared:
                shared[first].setdefault(node, {})[key] = None

    def _hand_over(
        self, shared: dict[int, dict[int, dict[PartitionKey, None]]], giving: int, taking: int
    ) -> None:
        key = next(iter(shared[giving][taking]))
        for keys in shared[giving].values():
            keys.pop(key, None)
        place = self._places[key]
        rest = tuple(giving if node == taking else node for node in place[1:])
        self._put(key, (taking, *rest))
        self._share(shared, key)

    def _chain(
        self, shared: Mapping[int, Mapping[int, Mapping[PartitionKey, None]]], led: dict[int, int]
    ) -> list[int] | None:
        """The shortest one from the node that leads most to the one in reach that leads least."""
        least_of_all = min(led.values(), default=0)
        in_vain: set[int] = set()  # whoever is in reach of one without a chain has none either
        for giving in sorted(led, key=lambda node: (-led[node], node)):
            if led[giving] - least_of_all < 2:
                return None  # nor from any after it: what is even is not searched, node by node
            if giving in in_vain:
                continue
            came_from = {giving: giving}
            reached = deque((giving,))
            while reached:
                node = reached.popleft()
                if led[node] == least_of_all:
                    break  # nobody in reach leads less
                for after in sorted(shared[node]):
                    if shared[node][after] and after not in came_from:
                        came_from[after] = node
                        reached.append(after)
            least = min(came_from, key=lambda node: (led[node], node))
            if led[giving] - led[least] >= 2:
                chain = [least]
                while chain[-1] != giving:
                    chain.append(came_from[chain[-1]])
                return chain[::-1]
            in_vain.update(came_from)
        return None


def _replaced(place: Sequence[int], old: int, new: int) -> tuple[int, ...]:
    return tuple(new if node == old else node for node in place)
