import subprocess
import sys

# Several answers at once, then none, again and again: page faults tell what went to the kernel and
# came back. In a process of its own, for the switch holds for as long as a process lives.
ROUNDS, BLOCKS, BLOCK_BYTES, PAGE_BYTES = 20, 6, 2 * 1_048_576, 4_096
PROGRAM = f"""
import os, resource
from penstock.node.process.resources import keep_freed_blocks
source = os.open("/dev/zero", os.O_RDONLY)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({ROUNDS}):
        blocks = [os.read(source, {BLOCK_BYTES}) for _ in range({BLOCKS})]
        assert all(len(block) == {BLOCK_BYTES} for block in blocks)
        blocks.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), keep_freed_blocks(), faults())
"""


def test_answers_are_made_in_memory_that_is_already_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    before, is_kept, after = done.stdout.split()
    pages = BLOCKS * BLOCK_BYTES // PAGE_BYTES
    assert is_kept == "True"
    assert int(before) > ROUNDS // 2 * pages, "each round costs its pages, where nothing is kept"
    assert int(after) < 2 * pages, "only the first round does"
