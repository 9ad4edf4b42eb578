"""Whatever comes in: an answer, or the end of the connection, and never a failure of ours."""

import asyncio
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.frontend_kafka.rig import Rig

from penstock.frontend.kafka.pipeline import log
from penstock.model.file_slice import in_memory
from penstock.net.kafka.listener import HangUp
from penstock.wire.kafka.apis import APIS

# Those that need no group coordinator.
KEYS = (0, 1, 2, 3, 10, 18, 21, 22, 23, 35, 60, 75)
HEAD = struct.Struct(">hhih")


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    api = APIS[draw(st.sampled_from(KEYS))]
    version = draw(st.integers(api.version_min, api.version_max))
    return HEAD.pack(api.key, version, 1, -1) + draw(st.binary(max_size=80))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(frame=st.one_of(frames(), st.binary(max_size=40)))
def test_any_frame_is_answered_or_ends_its_connection(
    frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()

    async def ask() -> None:
        rig = Rig()
        await rig.topic("t")
        rig.frontend.drain()  # nobody waits for what a random fetch waits for
        try:
            buffers = await rig.frontend.answer(rig.connection, frame)
            assert buffers is None or b"".join(in_memory(buffers))
        except HangUp:
            pass
        assert len(rig.meter.requests) == 1

    asyncio.run(ask())
    assert not [record for record in caplog.records if record.name == log.name]
