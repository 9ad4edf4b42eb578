"""A run of the lab from its start to its verdict: a cluster, clients that load it, one fault after
the other, then everything healed, drained, ended and judged.

Whatever goes wrong on the way ends the run and not the judging: what was written down until then
is looked at, and the report says where it stopped."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.ledger import now_ns, read_ledgers
from tests.lab import plan
from tests.lab.churn import Churn
from tests.lab.clock_faults import LACKING as NO_FAKETIME
from tests.lab.cluster import LEASE_MS, LabCluster
from tests.lab.faults import Clients, Stage
from tests.lab.judge import FaultDone, Judgement, Seen, judge
from tests.lab.kafka_check import KafkaHistory
from tests.lab.kafka_ledger import SUFFIX, AnyEvent, read_kafka_ledgers
from tests.lab.kafka_member import KafkaWork
from tests.lab.plan import Kind, Profile
from tests.lab.replicas import Compared, compare
from tests.lab.rows import Change, waves
from tests.lab.sqs_worker import SqsWork
from tests.lab.states import ComparedStates, compare_states
from tests.lab.workers import WorkerProcess, Workers

CALLS_SECONDS_MAX = 60.0
SETTLE_SECONDS_MAX = 90.0
SQS_PROCESSES = 2
TRUNCATED = '"replica truncated to match its leader"'


@dataclass(frozen=True)
class Options:
    profile: Profile
    seed: str
    with_kafka: bool = True
    kinds: Sequence[Kind] = plan.SMOKE
    pace_ms: int = 20
    seconds: float | None = None  # other than the profile's
    keep: Path | None = None  # a folder for what the nodes have on their disks at the end


@dataclass
class Outcome:
    """For the report."""

    options: Options
    judgement: Judgement
    faults: list[FaultDone]
    events: Sequence[L.AnyEvent]
    kafka: Sequence[AnyEvent]
    changes: Sequence[Change]
    registrations: Sequence[tuple[int, int, bool]]
    started_at: int
    ended_at: int
    left_out: list[str]  # what could not be tried here, and why
    logs: dict[int, str] = field(default_factory=dict)


class LabRun:
    """One run; ``go`` does it."""

    def __init__(self, options: Options, folder: Path, ledgers: Path) -> None:
        self._options = options
        self._folder = folder
        self._ledgers = ledgers
        self._chance = Random(f"lab-{options.seed}")
        self._workers = Workers()
        self._faults: list[FaultDone] = []
        self._trouble: list[str] = []
        self._pause = threading.Event()  # never set
        self._left_out: list[str] = []
        self._clients = Clients(ledgers)

    def go(self) -> Outcome:
        self._ledgers.mkdir(parents=True, exist_ok=True)
        with LabCluster(self._folder) as cluster:
            self._say_left_out(cluster)
            cluster.wait_settled()
            started_at, load_ended_at = now_ns(), 0
            churn = Churn([node.url for node in cluster.nodes.values()], seed=self._options.seed)
            ghosts: list[str] = []
            try:
                self._start_load(cluster)
                started_at = now_ns()
                churn.start()
                self._break(cluster)
                load_ended_at = now_ns()
                churn.end()
                self._workers.end()
                ghosts = churn.ghosts()
                cluster.wait_settled(seconds=SETTLE_SECONDS_MAX)
                cluster.wait_scrubbed()
                cluster.wait_settled(seconds=SETTLE_SECONDS_MAX)
                self._trouble += cluster.not_ready()
            except (AssertionError, OSError) as error:
                self._trouble.append(f"{type(error).__name__}: {error}")
            finally:
                self._workers.close()
                churn.close()
            kafka = read_kafka_ledgers(self._ledgers)
            compared, states = self._end_nodes(cluster, kafka)
            return self._judged(
                cluster, started_at, load_ended_at or now_ns(), ghosts, kafka, compared, states
            )

    def _say_left_out(self, cluster: LabCluster) -> None:
        if cluster.net.lacking is not None:
            self._left_out.append(f"faults of the network: {cluster.net.lacking}")
        if cluster.disks_lacking is not None:
            self._left_out.append(f"faults of disks: {cluster.disks_lacking}")
        if NO_FAKETIME is not None:
            self._left_out.append(f"wrong clocks: {NO_FAKETIME}")
        if not self._options.with_kafka:
            self._left_out.append("Kafka clients: switched off")

    # ── Load ─────────────────────────────────────────────────────────────────────────────────

    def _start_load(self, cluster: LabCluster) -> None:
        urls = tuple(node.url for node in cluster.nodes.values())
        folder = self._ledgers
        queues: list[str] = []
        for number in range(SQS_PROCESSES):
            name = f"q{number}"
            (folder / name).mkdir()
            sqs = SqsWork(
                name,
                self._options.seed,
                str(folder / name),
                urls,
                producers=2,
                pace_ms=self._options.pace_ms,
            )
            queues += sqs.queue_names()
            self._clients.sqs.append(sqs)
            self._workers.add(WorkerProcess("tests.lab.sqs_worker", sqs, cluster.clients, folder))
        if self._options.with_kafka:
            bootstrap = ",".join(node.kafka for node in cluster.nodes.values())
            kafka = KafkaWork("k0", str(folder), bootstrap, queues=tuple(queues))
            self._clients.kafka = kafka
            self._workers.add(
                WorkerProcess("tests.lab.kafka_worker", kafka, cluster.clients, folder)
            )
        self._workers.wait_ready()
        cluster.wait_settled()

    def _between(self) -> None:
        """Clients work: every process has something answered before the next fault."""
        if not self._workers.wait_calls(
            self._options.profile.calls_between, seconds=CALLS_SECONDS_MAX
        ):
            self._trouble.append(f"no progress for {CALLS_SECONDS_MAX} s with nothing broken")
        low, high = self._options.profile.pause_seconds
        self._pause.wait(self._chance.uniform(low, high))

    # ── Faults ───────────────────────────────────────────────────────────────────────────────

    def _break(self, cluster: LabCluster) -> None:
        stage = Stage(cluster, self._chance, self._clients, self._workers.check)
        self._between()
        for kind in self._kinds(cluster):
            was_settled = cluster.is_settled
            fault = kind(stage)
            print(f"  {kind.name} …", flush=True)
            try:
                fault.inject()
            finally:
                fault.heal()
                fault.healed_at = now_ns()
                self._faults.append(
                    FaultDone(
                        kind.name,
                        fault.victims,
                        fault.silent,
                        fault.injected_at,
                        fault.healed_at,
                        kind.is_single_kill and was_settled,
                        fault.fired(),
                        kind.is_clock_wrong,
                        tuple(fault.found),
                    )
                )
            print(f"    {', '.join(fault.victims)}: {fault.fired() or 'no effect'}", flush=True)
            cluster.wait_settled(seconds=fault.settle_seconds_max)
            self._between()

    def _kinds(self, cluster: LabCluster) -> Iterator[Kind]:
        kinds = plan.usable(
            self._options.kinds,
            has_net=cluster.net.lacking is None,
            has_disks=cluster.disks_lacking is None,
            has_faketime=NO_FAKETIME is None,
        )
        seconds = self._options.seconds or self._options.profile.seconds
        if not seconds:
            yield from kinds
            return
        draw = plan.drawn(self._chance, kinds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            yield draw()

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def _end_nodes(
        self, cluster: LabCluster, kafka: Sequence[AnyEvent]
    ) -> tuple[Compared, ComparedStates]:
        """All at once and without a word, so that nothing is appended by those that end last. Then
        their disks are looked at."""
        rows, topics = dict(cluster.rows.rows), list(cluster.rows.topics.values())
        for node in cluster.nodes.values():
            if node.is_running:
                os.kill(node.pid, signal.SIGKILL)
        for node in cluster.nodes.values():
            if node.is_running:
                node.kill()
        if self._options.keep is not None:
            for number, node in cluster.nodes.items():
                shutil.copytree(node.data, self._options.keep / f"n{number}-data")
        folders = {
            partition: {
                f"n{number}": cluster.nodes[number].data / "topics" / partition
                for number in row.replicas
                if number in cluster.nodes and number in row.whole
            }
            for partition, row in rows.items()
        }
        committed = {partition: row.watermark_floor for partition, row in rows.items()}
        ids = {topic.name: topic.topic_id for topic in topics}
        for (name, partition), mark in KafkaHistory(kafka).highest_marks().items():
            if name in ids:
                place = f"{ids[name]}/{partition}"
                committed[place] = max(mark, committed.get(place, 0))
        return compare(folders, committed), compare_states(folders, topics)

    def _judged(
        self,
        cluster: LabCluster,
        started_at: int,
        load_ended_at: int,
        ghosts: list[str],
        kafka: Sequence[AnyEvent],
        compared: Compared,
        states: ComparedStates,
    ) -> Outcome:
        sqs_files = sorted(
            path for path in self._ledgers.rglob("*.jsonl") if not path.name.endswith(SUFFIX)
        )
        events = read_ledgers(sqs_files)
        logs = {number: node.stderr for number, node in cluster.nodes.items()}
        logs.update(cluster.former_logs)
        rows = cluster.rows
        seen = Seen(
            events,
            kafka,
            self._faults,
            logs,
            compared,
            states,
            ghosts,
            failovers=len(rows.failovers(started_at)),
            in_sync_changes=len(rows.in_sync_changes(started_at)),
            failover_waves=waves(rows.failovers(started_at)),
            in_sync_waves=waves(rows.in_sync_changes(started_at)),
            truncations=sum(log.count(TRUNCATED) for log in logs.values()),
            lease_ms=LEASE_MS,
            node_at=cluster.node_at,
            load_ended_at=load_ended_at,
        )
        judgement = judge(
            seen,
            self._options.profile.minima,
            dark_extra_ms=self._options.profile.dark_extra_ms,
        )
        for why in self._trouble:
            judgement.add("STUCK", why)
        if self._trouble:  # which is why others were stuck
            judgement.first["STUCK"] = f"the run was broken off: {'; '.join(self._trouble)}"
        return Outcome(
            self._options,
            judgement,
            self._faults,
            events,
            kafka,
            list(rows.changes),
            list(rows.registrations),
            started_at,
            max(load_ended_at, now_ns() if not load_ended_at else 0),
            self._left_out,
            logs,
        )


def new_seed() -> str:
    return os.urandom(4).hex()
