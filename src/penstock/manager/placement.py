"""Placement of replicas on nodes, as deterministic functions.

The first replica of a partition is its preferred leader, so the order of replicas matters. Three
things are balanced, in this order: the racks of each partition, the replicas per node, and the
leaders per node. Every step improves one of these and worsens none. Therefore planning again after
a plan changes nothing, and no replica moves back and forth.

A node that is not alive keeps its replicas, because it is probably restarting. If the node will not
return, an operator drains it. New partitions are spread per topic: if one node led all partitions
of a busy topic, the topic would be limited to the cores of that node."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.metadata.cluster_entries import PartitionKey

T = TypeVar("T")
# By two nodes: the partitions that the first node leads and the second node has a replica of.
_Shared: TypeAlias = dict[int, dict[int, dict[PartitionKey, None]]]


class Host(NamedTuple):
    node: int
    rack: str = ""
    is_open: bool = True  # whether replicas may move from and to this node


class Placed(NamedTuple):
    replicas: tuple[int, ...]
    wanted: int  # requested number of replicas
    is_fixed: bool = False  # whether the partition must not be moved for balance
    weak: frozenset[int] = frozenset()  # replicas that are not up to date or not alive
    has: frozenset[int] = frozenset()  # nodes that have a replica until the partition has moved


class Loads:
    """The numbers of replicas and preferred leaders of each node."""

    def __init__(self) -> None:
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        # By first and second replica. If a node fails, the second replicas of its partitions become
        # leaders, so they should be on different nodes.
        self.seconds: Counter[tuple[int, int]] = Counter()
        self.of_topics: Counter[tuple[str, int]] = Counter()  # leaders, by topic id and node

    def add(self, topic_id: str, replicas: Sequence[int], change: int = 1) -> None:
        for node in replicas:
            _count(self.replicas, node, change)
        _count(self.leaders, replicas[0], change)
        _count(self.of_topics, (topic_id, replicas[0]), change)
        if len(replicas) > 1:
            _count(self.seconds, (replicas[0], replicas[1]), change)

    def leading(self, topic_id: str, nodes: Sequence[int]) -> int:
        """Return the node that leads the fewest partitions of the topic."""
        led = self.of_topics
        return min(nodes, key=lambda n: (led[topic_id, n], self.replicas[n], self.leaders[n], n))

    def order(self, first: int, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return the nodes: ``first``, then the node that is second to it least often, then
        others."""
        others = sorted(node for node in nodes if node != first)
        second = min(others, key=lambda node: (self.seconds[first, node], node), default=first)
        return (first, *sorted(others, key=lambda node: node != second))


def _count(counts: Counter[T], key: T, change: int) -> None:
    counts[key] += change
    assert counts[key] >= 0, "count fell below zero"
    if not counts[key]:
        del counts[key]


def choose(hosts: Sequence[Host], loads: Loads, topic_id: str, *, count: int) -> tuple[int, ...]:
    """Return ``count`` nodes for a new partition, or all nodes if there are fewer. The leader is
    first: the node that leads the fewest partitions of the topic, even if it has much load."""
    if not hosts or count < 1:
        return ()
    racks = _Racks(hosts)
    first = loads.leading(topic_id, [host.node for host in hosts])
    chosen = [first]
    # Prefer nodes that already lead partitions of the topic as followers. The other nodes then have
    # the least load when the next leader is chosen, so leaders and replicas are both balanced.
    hosts = sorted(hosts, key=lambda host: (-loads.of_topics[topic_id, host.node], host.node))
    while len(chosen) < min(count, len(hosts)):
        chosen.append(_least(hosts, racks, loads.replicas, chosen))
    return loads.order(first, chosen)


class _Racks:
    """The racks of nodes. A node without a known rack counts as a separate rack."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._of = {host.node: host.rack for host in hosts if host.rack}

    def __bool__(self) -> bool:
        return bool(self._of)

    def of(self, node: int) -> str | int:
        return self._of.get(node, node)

    def shared(self, node: int, others: Iterable[int]) -> int:
        rack = self.of(node)
        return sum(self.of(other) == rack for other in others)

    def fewest(self, others: Iterable[int], racks: Collection[str | int]) -> int:
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
    """Return the new replicas of partitions that should move or have too few replicas. With
    ``steps_max``, each kind of change stops after that many steps; the caller then plans again."""
    work = _Plan(partitions, hosts, draining)
    changes = (work.repair, work.spread_racks, work.even_replicas, work.even_leaders)
    for change in changes if is_balancing else changes[:1]:
        count = sum(1 for _ in islice(change(), steps_max))
        if change == work.repair and count == steps_max:
            break  # balancing waits until repairs are done, because they change the load
    return work.moved()


class _Plan:
    """A plan in progress. Each kind of change is a generator that yields after each step."""

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Placed],
        hosts: Sequence[Host],
        draining: frozenset[int],
    ) -> None:
        self._partitions = partitions
        self._keys = sorted(partitions)
        self._places = {key: partitions[key].replicas for key in self._keys}
        self._racks = _Racks(hosts)
        self._open = sorted(each for each in hosts if each.is_open and each.node not in draining)
        self._open_racks = {self._racks.of(each.node) for each in self._open}
        self._draining = draining
        # Partitions by node. Replicas on nodes that are not open do not move. Dictionaries serve as
        # ordered sets, so that every manager makes the same plan.
        self._on: dict[int, dict[PartitionKey, None]] = {each.node: {} for each in self._open}
        self._led: Counter[tuple[str, int]] = Counter()  # leaders by topic id and node
        for key in self._keys:
            self._led[key.topic_id, self._places[key][0]] += 1
            for node in self._places[key]:
                if node in self._on:
                    self._on[node][key] = None

    def moved(self) -> dict[PartitionKey, tuple[int, ...]]:
        before = self._partitions
        return {key: to for key, to in self._places.items() if to != before[key].replicas}

    def _load(self, node: int) -> int:
        return len(self._on[node])

    def _loads(self) -> dict[int, int]:
        return {node: len(keys) for node, keys in self._on.items()}

    def _put(self, key: PartitionKey, place: tuple[int, ...]) -> None:
        assert len(set(place)) == len(place), "a node has at most one replica of a partition"
        for node in self._places[key]:
            if node in self._on:
                self._on[node].pop(key, None)
        for node in place:
            if node in self._on:
                self._on[node][key] = None
        self._led[key.topic_id, self._places[key][0]] -= 1
        self._led[key.topic_id, place[0]] += 1
        self._places[key] = place

    def repair(self) -> Iterator[None]:
        for key in self._keys:
            place = self._repaired(key)
            if place != self._places[key]:
                self._put(key, place)
                yield

    def _repaired(self, key: PartitionKey) -> tuple[int, ...]:
        replicas = self._places[key]
        wanted = self._partitions[key].wanted
        kept = [node for node in replicas if node not in self._draining]
        if len(kept) == wanted == len(replicas):
            return replicas
        weak, shared, on = self._partitions[key].weak, self._racks.shared, self._on
        while len(kept) > wanted:
            worst = max(kept, key=lambda n: (n in weak, shared(n, kept), len(on.get(n, ())), n))
            kept.remove(worst)
        if len(kept) == wanted:
            return tuple(kept)
        loads = self._loads()
        chosen: list[int] = []
        while len(kept) + len(chosen) < wanted:
            others, has = [*kept, *chosen], self._partitions[key].has
            if all(host.node in others for host in self._open):
                break
            chosen.append(_least(self._open, self._racks, loads, others, has=has))
        return self._substituted(replicas, kept, chosen, wanted)

    def _substituted(
        self, replicas: Sequence[int], kept: Sequence[int], chosen: Sequence[int], wanted: int
    ) -> tuple[int, ...]:
        """Replace draining nodes by chosen ones. If these are too few, draining nodes stay."""
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

    def spread_racks(self) -> Iterator[None]:
        for key in self._keys if self._racks else ():
            is_fixed = self._partitions[key].is_fixed
            while not is_fixed and (better := self._spread(key)) is not None:
                self._put(key, better)
                yield

    def _spread(self, key: PartitionKey) -> tuple[int, ...] | None:
        place = self._places[key]
        if len({self._racks.of(node) for node in place}) == len(place):
            return None  # the usual case: all replicas are in different racks
        giving = [node for node in place if node in self._on]
        giving.sort(key=lambda node: (-self._racks.shared(node, place), -self._load(node), node))
        for node in giving:
            others = [each for each in place if each != node]
            if self._racks.shared(node, others) <= self._racks.fewest(others, self._open_racks):
                continue  # no rack has fewer replicas
            free = [host for host in self._open if host.node not in place]
            if not free:
                return None
            taking = _least(free, self._racks, self._loads(), others)
            if self._racks.shared(taking, others) < self._racks.shared(node, others):
                return _replaced(place, node, taking)
        return None

    def even_replicas(self) -> Iterator[None]:
        while self._even_one():
            yield

    def _even_one(self) -> bool:
        """Move one replica to a node with fewer replicas. Return False if no replica can move."""
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
        """Find a partition to move to ``taking``, if possible one that ``giving`` does not lead."""
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

    def even_leaders(self) -> Iterator[None]:
        """Even out the leaders per node. Leadership may pass along a chain of several nodes."""
        shared: _Shared = {node: {} for node in self._on}
        led = dict.fromkeys(self._on, 0)
        for key in self._keys:
            first = self._places[key][0]
            if first in led:
                led[first] += 1
                if not self._partitions[key].is_fixed:
                    self._share(shared, key)
        while (chain := self._chain(shared, led)) is not None:
            for giving, taking in pairwise(chain):
                key = next(iter(shared[giving][taking]))
                for keys in shared[giving].values():
                    keys.pop(key, None)
                self._put(key, (taking, *_replaced(self._places[key][1:], taking, giving)))
                self._share(shared, key)
            led[chain[0]] -= 1
            led[chain[-1]] += 1
            yield

    def _share(self, shared: _Shared, key: PartitionKey) -> None:
        first, *others = self._places[key]
        for node in others:
            if node in shared:
                shared[first].setdefault(node, {})[key] = None

    def _chain(self, shared: _Shared, led: dict[int, int]) -> list[int] | None:
        least_of_all = min(led.values(), default=0)
        in_vain: set[int] = set()  # nodes from which no chain leads to a node with fewer leaders
        for giving in sorted(led, key=lambda node: (-led[node], node)):
            if led[giving] - least_of_all < 2:
                return None  # the cluster is balanced
            if giving in in_vain:
                continue
            came_from = {giving: giving}
            reached = deque((giving,))
            while reached:
                node = reached.popleft()
                if led[node] == least_of_all:
                    break  # no other node leads fewer partitions
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
