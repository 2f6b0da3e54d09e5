import contextlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.estimation.allocator import ALIGNMENT, LARGEST_PADDING, BfcAllocator, OutOfMemoryError

LIMIT = 1 << 22
ACTIONS = st.lists(st.one_of(st.integers(1, LIMIT // 4), st.integers(-20, -1)), max_size=60)


def played(allocator, actions):
    """The live (address, charged, requested) after each action; a negative number releases one of them."""
    live = []
    for action in actions:
        if action > 0:
            with contextlib.suppress(OutOfMemoryError):
                live.append((*allocator.allocate(action), action))
        elif live:
            allocator.release(live.pop(action % len(live))[0])
        yield list(live)


@given(ACTIONS, st.booleans())
def test_chunks_never_overlap_and_the_sum_is_exact(actions, grows):
    allocator = BfcAllocator(LIMIT, None if grows else (LIMIT,))
    for live in played(allocator, actions):
        spans = sorted((address, address + charged) for address, charged, _ in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert allocator.in_use_bytes == sum(charged for _, charged, _ in live)
        for address, charged, requested in live:
            assert address % ALIGNMENT == charged % ALIGNMENT == 0
            assert requested <= charged
            assert charged < max(2 * requested, requested + LARGEST_PADDING) + 2 * ALIGNMENT


@given(ACTIONS)
def test_all_released_is_one_free_chunk_again(actions):
    allocator = BfcAllocator(LIMIT, (LIMIT,))
    *_, live = [[], *played(allocator, actions)]
    for address, _, _ in live:
        allocator.release(address)
    assert allocator.allocate(LIMIT) == (0, LIMIT)


def test_a_chunk_less_than_twice_the_request_is_not_split():
    allocator = BfcAllocator(10_240, (10_240,))
    first, _ = allocator.allocate(4_096)
    allocator.allocate(256)  # keeps the first from joining the rest
    allocator.release(first)
    assert allocator.allocate(2_304) == (0, 4_096)


def test_the_best_fit_is_taken_not_the_first():
    allocator = BfcAllocator(1 << 20, (1 << 20,))
    blocks = [allocator.allocate(size)[0] for size in (9_216, 256, 8_192, 256)]
    allocator.release(blocks[0])
    allocator.release(blocks[2])
    assert allocator.allocate(8_192) == (blocks[2], 8_192)


def test_growing_regions_double_and_do_not_join():
    """The facts of a 9,513 MiB card under growth: 2 MiB + 4 GiB + 2 GiB + the rest; 3.5 GiB free, in pieces."""
    kernel = 3_081_920_512  # bytes of bird_audio's Dense kernel
    allocator = BfcAllocator(9_513 << 20, None)
    allocator.allocate(1_024)
    allocator.allocate(kernel)
    allocator.allocate(kernel)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(kernel)
    assert max(size for size, _ in allocator.free_chunks()) < kernel < allocator.free_bytes
    one_region = BfcAllocator(9_513 << 20, (9_513 << 20,))
    for _ in range(3):
        one_region.allocate(kernel)


def test_free_regions_are_given_back_before_giving_up():
    allocator = BfcAllocator(8 << 20, None)
    small = [allocator.allocate(1 << 20)[0] for _ in range(4)]
    for address in small:
        allocator.release(address)
    assert allocator.allocate(7 << 20)[1] == 8 << 20  # the whole limit: its rest is too small to be split off


@pytest.mark.parametrize("growth", [False, True], ids=["one_region", "growth"])
@pytest.mark.parametrize("network", ["digits", "normed"])
def test_every_chunk_is_the_one_that_tensorflow_takes(network, growth):
    """All requests and releases of a real build and four steps: the charged bytes of each, and the addresses."""
    limit = 1 << 28
    child = Path(__file__).with_name("allocating.py")
    asked = subprocess.run(
        [sys.executable, child, json.dumps({"network": network, "limit": limit, "growth": growth})],
        capture_output=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    told = json.loads(asked.stdout)
    assert len(told["events"]) > 2000
    allocator = BfcAllocator(limit, None if growth else (2 << 20, limit - told["guard"]))
    ours, distances = {}, set()
    for allocates, address, requested, charged in told["events"]:
        if allocates:
            ours[address], taken = allocator.allocate(requested)
            assert taken == charged
            distances.add(address - ours[address])
        else:
            allocator.release(ours.pop(address))
    assert len(distances) == len(allocator._regions)  # apart from where each region lies, every address
