import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.profile import PHASES, ROWS_BESIDE_LAYERS, UNATTRIBUTED, Allocation, Category, MemoryProfile, Phase

LAYERS = ("conv1", "conv2", "dense1")
CATEGORIES = [c for c in Category if c is not Category.ALLOCATOR_SLACK]


@st.composite
def allocations(draw):
    requested = draw(st.integers(0, 2**42))
    start = draw(st.integers(0, 30))
    return Allocation(
        nbytes=requested + draw(st.integers(0, 2**20)),
        requested_nbytes=requested,
        start=start,
        end=draw(st.none() | st.integers(start, 40)),
        layer=draw(st.sampled_from((*LAYERS, *ROWS_BESIDE_LAYERS, UNATTRIBUTED))),
        category=draw(st.sampled_from(CATEGORIES)),
    )


@st.composite
def profiles(draw):
    return MemoryProfile("steady_step", "estimated", tuple(draw(st.lists(allocations(), max_size=40))), LAYERS)


def block(nbytes, start=0, end=None, layer="conv1", category=Category.PARAMETER, requested=None):
    return Allocation(nbytes, nbytes if requested is None else requested, start, end, layer, category)


@given(profiles())
def test_layers_categories_and_timeline_sum_to_the_peak(profile):
    peak = profile.peak_bytes
    assert sum(a.nbytes for a in profile.at_peak()) == peak
    assert profile.by_layer().to_numpy().sum() == peak
    assert profile.by_category().sum() == peak
    assert profile.timeline().sum(axis=1).max() == peak
    assert (profile.by_layer().sum(axis=0) == profile.by_category()).all()
    assert (profile.timeline().loc[profile.peak_position] == profile.by_category()).all()


@given(profiles())
def test_the_peak_is_the_largest_sum_over_all_positions(profile):
    # The oracle: look at every position, whether anything happens there or not.
    levels = [sum(a.nbytes for a in profile.alive_at(position)) for position in range(50)]
    assert profile.peak_bytes == max(levels)
    assert profile.peak_position == levels.index(max(levels))


@given(profiles())
def test_every_row_of_the_timeline_is_what_lives_there(profile):
    timeline = profile.timeline()
    assert (timeline >= 0).to_numpy().all()
    for position, row in timeline.iterrows():
        alive = profile.alive_at(position)
        assert row.sum() == sum(a.nbytes for a in alive)
        assert row["allocator_slack"] == sum(a.nbytes - a.requested_nbytes for a in alive)


@given(profiles())
def test_rows_and_columns(profile):
    table = profile.by_layer()
    rows = [*LAYERS, *ROWS_BESIDE_LAYERS]
    unattributed = any(a.layer == UNATTRIBUTED for a in profile.at_peak())
    assert list(table.index) == rows + [UNATTRIBUTED] * unattributed
    assert list(table.columns) == list(profile.by_category().index) == [str(c) for c in Category]
    for layer in LAYERS:
        assert table.loc[layer].sum() == sum(a.nbytes for a in profile.at_peak() if a.layer == layer)


def test_a_step_by_hand():
    profile = MemoryProfile(
        "steady_step",
        "estimated",
        (
            block(1000),  # alive throughout
            block(500, 1, 4, "conv2", Category.ACTIVATION, requested=300),
            block(200, 4, 6, "conv2", Category.GRADIENT),  # takes the place of the former
            block(400, 2, 3, "dense1", Category.TEMPORARY),
        ),
        LAYERS,
    )
    assert (profile.peak_bytes, profile.peak_position) == (1900, 2)
    assert [a.nbytes for a in profile.at_peak()] == [1000, 500, 400]
    assert profile.by_category()[lambda s: s > 0].to_dict() == {
        "parameter": 1000, "activation": 300, "temporary": 400, "allocator_slack": 200,
    }  # fmt: skip
    assert profile.timeline().sum(axis=1).to_dict() == {0: 1000, 1: 1500, 2: 1900, 3: 1500, 4: 1200, 6: 1000}


def test_the_earliest_of_equal_peaks_counts():
    profile = MemoryProfile("build", "measured", (block(8, 1, 2), block(8, 3, 4)))
    assert profile.peak_position == 1


def test_nothing_allocated():
    profile = MemoryProfile("build", "measured", ())
    assert profile.peak_bytes == 0
    assert profile.at_peak() == ()
    assert (
        profile.by_layer().to_numpy().sum() == profile.by_category().sum() == profile.timeline().to_numpy().sum() == 0
    )


def test_sums_beyond_32_bits_are_exact():
    profile = MemoryProfile("build", "measured", tuple(block(2**53 + 1) for _ in range(3)))
    assert profile.by_category()["parameter"] == 3 * (2**53 + 1) == profile.peak_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requested_nbytes": 9}, "An allocation of 8 B cannot serve a request of 9 B"),
        ({"requested_nbytes": -1}, "cannot serve a request of -1 B"),
        ({"start": -1}, "cannot live from -1 to 5"),
        ({"end": 2}, "cannot live from 3 to 2"),
    ],
)
def test_an_impossible_allocation_is_refused(change, message):
    good = Allocation(nbytes=8, requested_nbytes=8, start=3, end=5, layer="conv1", category=Category.INPUT)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(good, **change)


def test_an_unknown_phase_is_refused():
    with pytest.raises(ValueError, match=r"'warmup' is not a phase; phases are build, first_step"):
        MemoryProfile("warmup", "estimated", ())


def test_records_do_not_change():
    for record in (block(1), MemoryProfile(PHASES[0], "estimated", ()), Phase("build", 1)):
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
            record.phase = "x"
