"""The one place where the parts of a node are constructed and connected.

On one machine the frontend holds the broker itself; in a cluster it will hold something that calls
one. Nothing else in the program knows which.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from penstock import __version__
from penstock.broker.calls import Broker
from penstock.broker.disk import DiskBudget
from penstock.broker.groups import GroupHost
from penstock.broker.surroundings import Surroundings
from penstock.broker.transactions import TransactionHost
from penstock.cursor.group.settings import GroupSettings
from penstock.frontend.admin.api import AdminApi
from penstock.frontend.admin.health import Health
from penstock.frontend.admin.request import ConfigRow, Info
from penstock.frontend.catalog_view import queues_of, streams_of
from penstock.frontend.context import FrontendConfig
from penstock.frontend.kafka.context import KafkaConfig as KafkaFrontendConfig
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.pipeline import KafkaFrontend, is_produce
from penstock.frontend.kafka.usage import KafkaUsage
from penstock.frontend.pipeline import Frontend
from penstock.frontend.sealing import Sealing
from penstock.log.log import LogConfig
from penstock.log.tail import TailBudget
from penstock.metadata.catalog import StoredCatalog
from penstock.metadata.data_keys import DataKeys
from penstock.metadata.identities import NewKey, StoredIdentities
from penstock.metadata.moves import MoveTasks
from penstock.metadata.producer_ids import StoredProducerIds
from penstock.metadata.sqlite import SqliteStore
from penstock.model.errors import PenstockError
from penstock.model.identity import Tenant
from penstock.net.exchange import HttpRequest
from penstock.net.http import HttpConfig, HttpListener
from penstock.net.kafka import STRANGER_FRAME_BYTES_MAX, KafkaListener
from penstock.net.kafka import KafkaConfig as KafkaListenerConfig
from penstock.net.listener import Listener
from penstock.net.tls import Certificates, CertificateUnusable, TlsFiles
from penstock.node import open_files
from penstock.node.bootstrap import KEY_ID_VARIABLE, bootstrap
from penstock.node.bootstrap import TENANT as DEFAULT_TENANT
from penstock.node.config import KAFKA_LISTEN_DEFAULT, KAFKA_OFF, Config, Mode, parse_listen
from penstock.node.entropy import Entropy
from penstock.node.exposure import is_auth_on
from penstock.node.facts import Facts
from penstock.node.folder import DataFolder
from penstock.node.frontend_calls import make_calls
from penstock.node.keyring import KeyRingUnusable, start_key_ring
from penstock.node.memory import MemoryKeeper
from penstock.node.settings import Loaded, describe
from penstock.telemetry import families
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family
from penstock.telemetry.metrics import Meter

log_ = logging.getLogger(__name__)

POOL_THREADS = 4  # fdatasync and opening logs; more only queue in the kernel
DRAIN_SECONDS_MAX = 10.0
TOMB_SWEEP_SECONDS = 60.0
HEALTH_SECONDS = 1.0
CERTIFICATE_SECONDS = 5.0
IDENTITY_FLUSH_SECONDS = 30.0
# Whoever develops restarts consumers all day: nobody should wait for more of them then.
DEV_GROUPS = GroupSettings(initial_delay_ms=0, consumer_heartbeat_ms=1_000)


class Node:
    """Everything one process runs. ``start`` returns once requests are served."""

    def __init__(self, loaded: Loaded[Config]) -> None:
        self._loaded = loaded
        self._config = loaded.config
        self._clock = SystemClock()
        self._meter = Meter()
        self._health = Health()
        self._folder = DataFolder(Path(self._config.node.data))
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="disk")
        self._disk = DiskBudget(self._folder.path, self._clock)
        self._entropy = Entropy()
        self._is_elapsed_trusted = self._folder.renew_anchor(self._clock)
        self._endpoints: dict[str, str] = {}
        self.is_auth_on = is_auth_on(self._config)
        self._certificates = self._read_certificates()
        self._tls = None if self._certificates is None else self._certificates.context
        self._scheme = "http" if self._tls is None else "https"
        self._reported: set[str] = set()  # troubles that the probes show now
        self._kafka: KafkaListener | None = None
        self._kafka_address = KAFKA_LISTEN_DEFAULT
        self.kafka_address = ""
        self.http_url = ""
        self.admin_url = ""
        self.root_key: NewKey | None = None  # made by this start, and shown once

    async def start(self) -> None:
        config = self._config
        self._store = await SqliteStore.open(self._folder.metadata_path)
        files_max = open_files.limit_now()
        self._catalog = StoredCatalog(
            self._store,
            recreate_guard_ms=config.queue.recreate_guard_ms,
            partitions_max=open_files.partitions_max(files_max),
        )
        self._tasks = MoveTasks(self._store)
        await self._catalog.start()
        open_files.check_room(self._catalog.partition_count, files_max)
        await self._tasks.start()
        await self._start_identities()
        await self._start_sealing()
        self._broker = Broker(self._surroundings(), self._tasks, entropy=self._entropy)
        self._calls = make_calls(
            self._broker,
            self._catalog,
            self._identities,
            clock=self._clock,
            node=config.node.name or platform.node(),
        )
        self._meter.register_collector(self._calls.callees.samples)
        # The admin address opens first: a long recovery can be watched on it.
        await self._start_admin()
        await self._broker.start()
        await self._start_groups()
        await self._start_transactions()
        self._facts = Facts(
            config,
            node=config.node.name or platform.node(),
            broker=self._broker,
            catalog=self._catalog,
            producer_ids=self._producer_ids,
            clock=self._clock,
            entropy=self._entropy,
        )
        self._facts.start()
        await self._start_kafka()
        await self._start_http()
        self._memory = MemoryKeeper(self._pool)
        self._catalog.on_change(self._memory.topic_changed)
        self._meter.register_collector(self._levels)
        self._calls.quotas.start(self._broker)
        self._report_health()
        self._health.ready()
        self._jobs = [
            asyncio.create_task(self._sweep_tombs(), name="tombstone sweep"),
            asyncio.create_task(self._watch_health(), name="health watch"),
            asyncio.create_task(self._flush_identities(), name="identity flush"),
        ]
        if self._certificates is not None:
            watch = self._watch_certificates(self._certificates)
            self._jobs.append(asyncio.create_task(watch, name="certificate watch"))

    def _read_certificates(self) -> Certificates | None:
        tls = self._config.tls
        if not tls.cert_file:
            return None
        client_ca = Path(tls.client_ca_file) if tls.client_ca_file else None
        key = Path(tls.key_file or tls.cert_file)  # one file may hold both
        return Certificates(TlsFiles(Path(tls.cert_file), key, client_ca))

    async def _watch_certificates(self, certificates: Certificates) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            self._renew(certificates)

    def reread(self) -> None:
        """An operator says that files have changed."""
        if self._certificates is not None:
            self._renew(self._certificates)

    def _renew(self, certificates: Certificates) -> None:
        """What cannot be used is said and left; the old one goes on."""
        try:
            if certificates.renew():
                log_.info("certificate renewed")
        except CertificateUnusable as error:
            log_.error("certificate not renewed", extra={"reason": str(error)})

    async def _start_identities(self) -> None:
        config = self._config
        self._ring = await start_key_ring(config.keys, self._folder.path, env=os.environ)
        self._identities = StoredIdentities(self._store, self._ring, entropy=self._entropy)
        await self._identities.start()
        resealed = await self._identities.reseal(self._ring.rewrap)
        if resealed.unreadable:
            raise KeyRingUnusable(
                f"the master key does not fit {resealed.unreadable} of the secrets in the store: "
                "give the one they were sealed with in keys.master_file or keys.old_master_files"
            )
        if self._identities.tenant(config.node.account) is None:
            # Users can be made before anybody is asked for a key.
            default = Tenant(config.node.account, DEFAULT_TENANT, self._clock.wall_ms())
            await self._identities.create_tenant(default)
        if self.is_auth_on:
            made = await bootstrap(
                self._identities,
                account=config.node.account,
                env=os.environ,
                now_ms=self._clock.wall_ms(),
            )
            if KEY_ID_VARIABLE not in os.environ:
                self.root_key = made

    async def _flush_identities(self) -> None:
        """When keys were last used, to the minute."""
        while True:
            await asyncio.sleep(IDENTITY_FLUSH_SECONDS)
            try:
                await self._identities.flush()
            except PenstockError as error:
                log_.warning("last uses of keys not written", extra={"reason": str(error)})

    def freeze(self) -> None:
        """Nothing that is there now is looked at by the collector again."""
        self._memory.freeze(self._catalog.all_topics())

    async def drain(self) -> None:
        """Turn away, finish what is under way, write everything down."""
        self._health.drain()
        if self._config.node.drain_ms:
            await asyncio.sleep(self._config.node.drain_ms / 1_000)
        self._http.is_draining = True
        self._broker.partitions.end_waits()
        self._groups.end_waits()
        listeners: list[Listener] = [self._http]
        if self._kafka is not None:
            self._kafka_frontend.drain()
            listeners.append(self._kafka)
        await asyncio.gather(*(one.drain(seconds_max=DRAIN_SECONDS_MAX) for one in listeners))
        await self._facts.stop()
        await self._transactions.stop()
        await self._groups.stop()
        for job in self._jobs:
            job.cancel()
        self._memory.stop()
        self._calls.quotas.stop()
        await self._broker.stop()
        await self._admin.drain(seconds_max=1.0)
        await self._identities.flush()
        await self._identities.stop()
        await self._tasks.stop()
        await self._data_keys.stop()
        await self._catalog.stop()
        await self._store.close()
        self._pool.shutdown()
        self._folder.release()

    async def _start_sealing(self) -> None:
        """Data keys, under the present master key whatever they were wrapped with before."""
        self._data_keys = DataKeys(
            self._store, self._ring, self._catalog, clock=self._clock, entropy=self._entropy
        )
        await self._data_keys.start()
        resealed = await self._data_keys.reseal(self._ring.rewrap)
        if resealed.unreadable:
            raise KeyRingUnusable(
                f"the master key does not fit {resealed.unreadable} data keys in the store: give "
                "the one they were wrapped with in keys.master_file or keys.old_master_files"
            )
        self._sealing = Sealing(
            self._data_keys,
            clock=self._clock,
            entropy=self._entropy,
            meter=self._meter,
            is_default=self._config.keys.encrypt_by_default,
        )

    def _surroundings(self) -> Surroundings:
        config = self._config
        return Surroundings(
            folder=self._folder.path,
            clock=self._clock,
            pool=self._pool,
            disk=self._disk,
            catalog=self._catalog,
            meter=self._meter,
            log=LogConfig(
                segment_bytes_max=config.log.segment_bytes_max,
                segment_age_ms_max=config.log.segment_age_ms_max,
                tail_bytes_max=config.log.tail_bytes_max,
                tail_budget=TailBudget(config.log.tails_bytes_max),
            ),
            fsync_default=config.log.fsync,
            fsync_interval_ms=config.log.fsync_interval_ms,
            clean_interval_ms=config.log.retention_check_ms,
            in_flight_max=config.queue.in_flight_max,
            is_elapsed_trusted=self._is_elapsed_trusted,
        )

    async def _start_http(self) -> None:
        config = self._config
        frontend = Frontend(
            backend=self._calls.backend,
            sealing=self._sealing,
            catalog=self._calls.catalog,
            shares=self._calls.shares,
            clock=self._clock,
            config=FrontendConfig(
                account=config.node.account,
                region=config.node.region,
                external_url=config.http.external_url or None,
                is_dev=config.node.mode is Mode.DEV,
                is_auth_on=self.is_auth_on,
                recreate_guard_ms=config.queue.recreate_guard_ms,
                partitions_default=config.queue.partitions,
                admin_url=self.admin_url,
            ),
            meter=self._meter,
            entropy=self._entropy,
            perf=perf_counter,
            identities=self._identities,
            usage=self._facts.usage,
            audit=self._facts.audit,
            throttler=self._calls.throttler,
            quotas=self._calls.quotas,
        )
        self._meter.register_collector(frontend.samples)
        self._http = self._listener(frontend, "http", outlives=frontend.outlives)
        host, port = parse_listen(config.http.listen)
        bound = await self._http.start(host, port, tls=self._tls)
        self.http_url = f"{self._scheme}://{bound}"
        self._endpoints["sqs"] = self.http_url

    async def _start_groups(self) -> None:
        node = self._config.node
        self._groups = GroupHost(
            streams=self._broker,
            catalog=self._catalog,
            clock=self._clock,
            entropy=self._entropy,
            account=node.account,
            region=node.region,
            settings=DEV_GROUPS if node.mode is Mode.DEV else GroupSettings(),
        )
        await self._groups.start()

    async def _start_transactions(self) -> None:
        self._producer_ids = StoredProducerIds(self._store)
        self._transactions = TransactionHost(
            streams=self._broker,
            groups=self._groups,
            catalog=self._catalog,
            next_producer_id=self._producer_ids.next_id,
            clock=self._clock,
            entropy=self._entropy,
            account=self._config.node.account,
            region=self._config.node.region,
        )
        await self._transactions.start()

    async def _start_kafka(self) -> None:
        config = self._config.kafka
        if config.listen == KAFKA_OFF:
            return
        self._kafka_frontend = KafkaFrontend(
            KafkaContext(
                streams=self._calls.streams,
                shares=self._calls.shares,
                catalog=streams_of(self._calls.catalog),
                groups=self._groups,
                transactions=self._transactions,
                producer_ids=self._producer_ids,
                clock=self._clock,
                config=KafkaFrontendConfig(
                    advertised=lambda: self._kafka_address,
                    cluster_id=self._folder.identity(self._entropy),
                    account=self._config.node.account,
                    region=self._config.node.region,
                    auto_create=config.auto_create,
                    partitions_default=config.partitions,
                    log_dir=str(self._folder.path),
                    is_auth_on=self.is_auth_on,
                    is_insecure=self._config.auth.insecure,
                    login_ms=config.login_ms,
                ),
                meter=self._meter,
                entropy=self._entropy,
                sealing=self._sealing,
                identities=self._identities,
                changes=self._calls.directory,
                login_seed=self._ring.derive(b"kafka log-in"),
                throttler=self._calls.throttler,
                quotas=self._calls.quotas,
                usage=self._kafka_usage(),
                audit=self._facts.audit,
            ),
            perf=perf_counter,
        )
        self._kafka = KafkaListener(
            self._kafka_frontend.answer,
            config=KafkaListenerConfig(
                frame_bytes_max=config.frame_bytes_max,
                connections_per_address_max=config.connections_per_ip_max,
                stranger_frame_bytes_max=STRANGER_FRAME_BYTES_MAX if self.is_auth_on else 0,
            ),
            outlives=is_produce,
        )
        bound = await self._bind_kafka(self._kafka)
        self._kafka_address = parse_listen(config.advertised or bound)
        self._endpoints["kafka"] = self.kafka_address = bound

    def _kafka_usage(self) -> KafkaUsage | None:
        table = self._facts.usage
        return None if table is None else KafkaUsage(table, region=self._config.node.region)

    async def _bind_kafka(self, listener: KafkaListener) -> str:
        listen = self._config.kafka.listen
        if listen:
            return await listener.start(*parse_listen(listen), tls=self._tls)
        host, port = KAFKA_LISTEN_DEFAULT
        _, http_port = parse_listen(self._config.http.listen)
        try:
            return await listener.start(host, port if http_port else 0, tls=self._tls)
        except OSError:
            # Nobody asked for that port by name.
            return await listener.start(host, 0, tls=self._tls)

    async def _start_admin(self) -> None:
        api = AdminApi(
            backend=self._calls.backend,
            catalog=queues_of(self._calls.catalog),
            meter=self._meter,
            health=self._health,
            clock=self._clock,
            info=self._info(),
            config=[ConfigRow(r.key, r.value, r.origin) for r in describe(self._loaded)],
            token=self._config.admin.token,
            sealing=self._sealing,
            identities=self._calls.directory,
            callees=self._calls.callees,
            everything=self._calls.catalog,
            is_auth_on=self.is_auth_on,
        )
        self._admin = self._listener(api, "admin")
        listen = self._config.admin.listen
        if listen:
            host, port = parse_listen(listen)
            bound = await self._admin.start(host, port, tls=self._tls)
            self.admin_url = f"{self._scheme}://{bound}"
            return
        host, port = parse_listen(self._config.http.listen)
        try:
            bound = await self._admin.start(host, port + 1 if port else 0, tls=self._tls)
        except OSError:
            # Nobody asked for that port by name.
            bound = await self._admin.start(host, 0, tls=self._tls)
        self.admin_url = f"{self._scheme}://{bound}"

    def _info(self) -> Info:
        node = self._config.node
        return Info(
            version=__version__,
            node=node.name or platform.node(),
            mode=node.mode,
            account=node.account,
            region=node.region,
            data=str(self._folder.path),
            started_at_ms=self._clock.wall_ms(),
            endpoints=self._endpoints,
            roles=("frontend", "metadata", "backend"),
            clock_trusted=self._is_elapsed_trusted,
        )

    def _listener(
        self,
        answerer: Frontend | AdminApi,
        name: str,
        *,
        outlives: Callable[[HttpRequest], bool] = lambda _request: False,
    ) -> HttpListener:
        http = self._config.http
        return HttpListener(
            answerer.handle,
            config=HttpConfig(
                request_bytes_max=http.request_bytes_max,
                connections_max=http.connections_max,
                connections_per_address_max=http.connections_per_ip_max,
                header_seconds_max=http.header_ms_max / 1_000,
                body_seconds_max=http.body_ms_max / 1_000,
                idle_seconds_max=http.idle_ms_max / 1_000,
            ),
            name=name,
            seed=self._entropy(10),
            outlives=outlives,
        )

    async def _sweep_tombs(self) -> None:
        """Forget deletions whose folders are gone and whose names are no longer guarded."""
        topics = self._folder.path / "topics"
        while True:
            await asyncio.sleep(TOMB_SWEEP_SECONDS)
            try:
                await self._catalog.sweep(
                    now_ms=self._clock.wall_ms(),
                    is_gone=lambda topic_id: not (topics / topic_id).exists(),
                )
                await self._data_keys.sweep()
            except PenstockError as error:  # a full disk, say: the next round tries again
                log_.warning("tombstones not swept", extra={"reason": str(error)})

    async def _watch_health(self) -> None:
        """Once a second: what the probes should say, and how late the loop runs."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEALTH_SECONDS
            await asyncio.sleep(HEALTH_SECONDS)
            self._meter.loop_lagged(max(0.0, loop.time() - due))
            self._report_health()

    def _report_health(self) -> None:
        found = {f"partition {text}": text for text in self._broker.partitions.damages()}
        found.update({f"groups {text}": text for text in self._groups.troubles()})
        found.update({text: text for text in self._transactions.troubles()})
        if self._disk.is_low:
            found["disk"] = "the disk is full: messages are refused, receiving goes on"
        if self._catalog.trouble is not None:
            found["catalog"] = self._catalog.trouble
        if self._data_keys.trouble is not None:
            found["data keys"] = self._data_keys.trouble
        found.update(self._facts.troubles())
        if self._identities.trouble is not None:
            found["identities"] = self._identities.trouble
        for name in self._reported - found.keys():
            self._health.resolve(name)
        for name, text in found.items():
            self._health.report(name, text, is_blocking=False)
        self._reported = set(found)

    def _levels(self) -> Iterable[tuple[Family, Sample]]:
        yield families.DISK_FREE, ((), self._disk.free_bytes)
        if self._certificates is not None:
            yield families.TLS_EXPIRY, ((), self._certificates.expires_at_ms / 1_000)
        yield families.PARTITIONS_DAMAGED, ((), len(self._broker.partitions.damages()))
        yield families.CONNECTIONS, ((), len(self._http.connections))
