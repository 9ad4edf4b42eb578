"""What replicas count of themselves, and what leaders say once the feature level allows it."""

from pathlib import Path

from penstock.model.levels import LEADERS_SEND_ENDS
from penstock.replication.epochs import NO_EPOCH

from .stage import cluster, until


async def test_ends_are_told_from_their_level_on_by_whoever_has_heard_of_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        topic, key = await found.topic()
        await found.sent(1, topic, "a", "b")
        await found.alike(key)
        follower = found.nodes[2].replica(key)
        assert follower.leader_end == (NO_EPOCH, -1)
        assert follower.lag_count == 0
        found.nodes[1].level = LEADERS_SEND_ENDS  # the followers have not heard yet
        await found.sent(1, topic, "c")
        end = found.nodes[1].replica(key).replica.end_offset
        await until(lambda: follower.leader_end == (1, end))
        await found.alike(key)
        assert follower.lag_count == 0


async def test_how_far_a_follower_is_behind_is_of_the_leader_it_follows(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        _topic, key = await found.topic()
        follower = found.nodes[2].replica(key)
        follower.leader_end = (1, follower.replica.end_offset + 7)
        assert follower.lag_count == 7
        await found.elect(key, 3)
        await until(lambda: follower.replica.epoch == 2)
        assert follower.lag_count == 0


async def test_fetches_bytes_and_changes_of_the_in_sync_set_are_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        topic, key = await found.topic()
        await found.sent(1, topic, "x" * 1_000)
        await found.alike(key)
        leading, following = (found.nodes[number].replicators.counts for number in (1, 2))
        assert leading.fetches_served > 0
        assert leading.bytes_out >= 2 * 1_000
        assert following.fetches_asked > 0
        assert following.bytes_in >= 1_000
        assert leading.epochs == following.epochs == 0
        await found.nodes[3].kill()
        await until(lambda: leading.left == 1)
        await found.nodes[3].start()
        await until(lambda: leading.joined == 1)
        await found.elect(key, 2)
        await until(lambda: leading.epochs == following.epochs == 1)


async def test_the_worst_lag_is_that_of_the_furthest_follower(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        topic, key = await found.topic()
        await found.sent(1, topic, "a")
        await found.alike(key)
        found.nodes[3].is_cut = True
        replica = found.nodes[1].replica(key).replica
        leader = replica.leader
        assert leader is not None

        def lag() -> tuple[int, int]:
            assert leader is not None
            return leader.worst_lag(now_ms=found.nodes[1].replicators.now_ms())

        await until(lambda: lag()[1] > 600)
        assert lag()[0] == 0
        found.nodes[3].is_cut = False
        await until(lambda: lag()[1] < 600)
