"""The rules of replication and the habits of the shell around them, each of them broken: a checker
that does not notice proves nothing.

A mutation replaces one decision of the real code, or one habit of the shell, by what it would be
without the rule. Some rules matter so rarely that thousands of schedules pass without them;
``first`` is a seed not far below one that notices, ``schedules`` how many to try from there.
``python -m tests.sim --mutations`` looks for such seeds from the beginning.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from tests.sim import broken_habits as habits
from tests.sim import broken_rules as rules
from tests.sim import push
from tests.sim.fold import Fold
from tests.sim.store import SimStore
from tests.sim.world import STEPS, World

from penstock.replication import election
from penstock.replication.leader import Leader
from penstock.replication.replica import Replica

Patch = tuple[object, str, Any]


class Mutation(NamedTuple):
    rule: str
    world: type[World] = World
    patches: tuple[Patch, ...] = ()
    is_synced: bool = True
    first: int = 0
    schedules: int = 300


@contextmanager
def broken(mutation: Mutation) -> Iterator[None]:
    def put_back(owner: object, name: str, value: object) -> None:
        setattr(owner, name, value)

    with ExitStack() as stack:
        for owner, name, value in mutation.patches:
            stack.callback(put_back, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


MUTATIONS: Mapping[str, Mutation] = {
    "a checkpoint forgets bookmarks": Mutation("MARK", push.ForgetsBookmarks),
    "wanted records are passed like unwanted ones": Mutation("A1", push.PassesEverything),
    "a change is made whatever the row is by now": Mutation(
        "R1", patches=((SimStore, "swap", rules.swaps_whatever_the_version),)
    ),
    "an old view is believed": Mutation("R4", rules.LooksAtOldViews, first=2_350, schedules=6_000),
    "an old view is believed after a second registration": Mutation(
        "R4", rules.LooksBackWhenReborn, first=3_600, schedules=6_000
    ),
    "a loss is not declared": Mutation("R5", rules.SaysNothingOfLoss),
    "a loss is not declared where disks are not waited for": Mutation(
        "R5", rules.SaysNothingOfLoss, is_synced=False
    ),
    "a damaged copy is emptied before it is counted out": Mutation(
        "R5", patches=((election, "next_step", rules.empties_what_counts),)
    ),
    "a damaged copy is counted out in an epoch in which it has asked": Mutation(
        "R5",
        patches=(
            (election, "next_step", rules.counts_out_at_once),
            (election, "resign", rules.resigns_in_the_same_epoch),
        ),
        first=120,
        schedules=3_000,
    ),
    "a damaged copy never counts again": Mutation(
        "R5", patches=((election, "next_step", rules.stays_aside),), first=150, schedules=3_000
    ),
    "of those who have lost something anybody leads": Mutation(
        "R6", patches=((election, "recover", rules.recovers_with_anybody),), is_synced=False
    ),
    "anybody may lead": Mutation("R7", rules.AnybodyLeads),
    "a new life leads on": Mutation(
        "R8", patches=((Replica, "_take_role", rules.takes_role_in_any_life),)
    ),
    "followers are believed over epochs": Mutation(
        "R8", rules.KeepsItsTable, first=120, schedules=12_000
    ),
    "a follower is added without this epoch's beginning": Mutation(
        "R11",
        patches=((Leader, "adding", rules.adds_without_epoch_start),),
        first=80,
        schedules=12_000,
    ),
    "a follower is added whoever it is by now": Mutation(
        "R11", patches=((Leader, "adding", rules.adds_whoever_it_is),), first=430, schedules=12_000
    ),
    "a smaller set counts before it is true": Mutation(
        "R12", patches=((Leader, "_counted", rules.counts_shrunk),)
    ),
    "a larger set does not count until it is seen": Mutation(
        "R12",
        patches=((Leader, "_counted", rules.counts_without_pending),),
        first=1_360,
        schedules=12_000,
    ),
    "answers do not wait for the disk": Mutation("R13", habits.AnswersBeforeDisk, schedules=12_000),
    "any epoch is served": Mutation(
        "R14", patches=((Leader, "fetched", rules.serves_any_epoch),), schedules=12_000
    ),
    "the follower's history is not compared": Mutation(
        "R15", patches=((Leader, "fetched", rules.serves_without_lineage),)
    ),
    "what stands before a dropped beginning is not compared": Mutation(
        "R15",
        patches=((Leader, "_compare", rules.compares_only_behind_its_start),),
        first=11_250,
        schedules=6_000,
    ),
    "late answers count": Mutation(
        "R16",
        patches=(
            (Replica, "_take", rules.takes_any_answer),
            (Replica, "truncated", rules.truncates_anything),
        ),
        schedules=12_000,
    ),
    "a follower cuts to the high watermark": Mutation("R17", rules.CutsToTheWatermark),
    "a node that was taken for dead answers alone": Mutation(
        "R20", habits.NeverDoubts, schedules=3_000
    ),
    "a copy goes without the leader's word": Mutation("R22", rules.DropsUnasked, schedules=12_000),
    "what a copy had that was dropped still counts": Mutation(
        "R22",
        rules.MovesOften,
        patches=((Leader, "saw", rules.remembers_the_dropped),),
        first=180,
        schedules=12_000,
    ),
    "replicas move before they are filled": Mutation(
        "R23", patches=((election, "place", rules.places_at_once),)
    ),
    "nobody waits for the others": Mutation("R24", habits.WaitsForItselfAlone),
    "a deletion of records is answered by its leader alone": Mutation(
        "R25", patches=((Replica, "low_watermark_held", rules.counts_its_own_low_watermark),)
    ),
    "a follower is added without the low watermark": Mutation(
        "R25",
        patches=((Leader, "adding", rules.adds_without_low_watermark),),
        first=380,
        schedules=12_000,
    ),
    "a follower says that it has stored a low watermark before it has": Mutation(
        "R25", rules.SaysStoredBeforeItIs, schedules=3_000
    ),
    "a request under way is answered with yes at a handover": Mutation(
        "R8", habits.SaysYesAtHandover
    ),
    "a request whose record was cut is answered with yes": Mutation(
        "R8", habits.SaysYesToWhatItCut
    ),
    "a new leader does not look at what is not committed": Mutation(
        "Q1", habits.LeadsWithoutTheRest
    ),
    "a deletion is answered before it is committed": Mutation("Q2", habits.AnswersDeletesEarly),
    "a receive is answered before it is committed": Mutation("Q2", habits.AnswersReceivesEarly),
    "an extension is answered before it is committed": Mutation(
        "Q2", habits.AnswersExtensionsEarly, first=200, schedules=12_000
    ),
    "leases end by another clock": Mutation("Q3", habits.LeasesByTheWallClock),
    "receives are counted anew by every leader": Mutation("Q4", habits.ForgetsAttempts),
    "ids are forgotten with their leader": Mutation("Q6", habits.ForgetsIds),
    "records go before what finishes them is committed": Mutation("Q7", habits.DropsBeforeCommit),
    "a fold from the middle believes a count from the beginning": Mutation(
        "Q7", patches=((Fold, "_clip", habits.clips_and_does_not_count),), schedules=3_000
    ),
    "a follower reads beyond the high watermark": Mutation("Q7", habits.ReadsBeyondTheWatermark),
    "a checkpoint holds what is not committed": Mutation(
        "Q7", habits.NotesWhatIsNotCommitted, first=1_100, schedules=6_000
    ),
    "a checkpoint is kept over a cut": Mutation(
        "Q7", habits.KeepsCheckpointsOverACut, schedules=3_000
    ),
}


def find_seed(mutation: Mutation, *, first: int, schedules: int) -> tuple[int, str] | None:
    """The first schedule that notices, and what it says."""
    with broken(mutation):
        for seed in range(first, first + schedules):
            try:
                found = mutation.world(seed, is_synced=mutation.is_synced).run(STEPS)
            except AssertionError as noticed:
                # The cursors and the rules say themselves what cannot be.
                found = f"ASSERT {noticed}"
            if found:
                return seed, found
    return None
