import csv
import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz import interchange
from memviz.estimation.result import Estimate
from memviz.failure import Failure
from memviz.models.convnet import LayerPlan
from memviz.profile import PHASES, Allocation, Category, MemoryProfile, Phase

names = st.text(max_size=8)
sizes = st.integers(0, 2**40)
shapes = st.none() | st.lists(st.integers(0, 9), max_size=4).map(tuple)
seconds = st.none() | st.floats(0, 1e6)


@st.composite
def allocations(draw) -> Allocation:
    requested, start = draw(sizes), draw(st.integers(0, 100))
    return Allocation(
        nbytes=requested + draw(st.integers(0, 255)), requested_nbytes=requested, start=start,
        end=draw(st.none() | st.integers(start, 200)), layer=draw(names), category=draw(st.sampled_from(Category)),
        op=draw(names), shape=draw(shapes), dtype=draw(names), address=draw(st.none() | sizes),
        start_seconds=draw(seconds), end_seconds=draw(seconds),
    )  # fmt: skip


profiles = st.builds(
    MemoryProfile,
    phase=st.sampled_from(PHASES),
    source=st.sampled_from(["estimated", "compiled", "measured"]),
    allocations=st.lists(allocations(), max_size=8).map(tuple),
    layers=st.lists(names, max_size=3).map(tuple),
    setup=st.dictionaries(names, st.none() | st.integers() | names, max_size=3),
    not_counted=st.lists(names, max_size=2).map(tuple),
    allocator_peak_bytes=st.none() | sizes,
)


def through_json(data):
    return json.loads(json.dumps(data))


@given(profiles)
def test_a_profile_comes_back_equal(profile):
    assert interchange.profile_from_dict(through_json(interchange.profile_to_dict(profile))) == profile


@given(profiles, sizes, st.booleans())
def test_an_estimate_comes_back_equal(profile, required, with_profile):
    steady = Phase("steady_step", profile.peak_bytes, profile if with_profile else None)
    given_fields = {"phases": {"steady_step": steady}, "required_bytes": required, "largest_phase": "steady_step"}
    given_fields["peak_ranges"] = {"steady_step": (required, required + 1)}
    if with_profile:
        failure = Failure("build", "AddV2", (10, 10), "float32", 400, 300, weight="dense/kernel")
        given_fields |= {"failure": failure, "at_failure": profile}
    layer = LayerPlan("dense", "Dense", {"activation": "relu"}, (10,), ((10, 10), (10,)), (), (10,))
    others = {"loss": "mse", "completing": 0.5, "layers": (layer,)}
    assert {*given_fields, *others, "failure", "at_failure"} == {f.name for f in fields(Estimate)}
    estimate = Estimate(**given_fields, **others)
    assert interchange.estimate_from_dict(through_json(interchange.estimate_to_dict(estimate))) == estimate


PROFILE = interchange.profile_to_dict(
    MemoryProfile("build", "measured", (Allocation(512, 400, 0, None, "dense", Category.PARAMETER, shape=(10, 10)),))
)


@pytest.mark.parametrize(
    "data",
    [
        {}, [], None, "profile",
        PROFILE | {"version": 2},
        PROFILE | {"format": "memviz-estimate"},
        {k: v for k, v in PROFILE.items() if k != "layers"},
        PROFILE | {"phase": "lunch"},
        PROFILE | {"allocations": None},
        PROFILE | {"allocations": PROFILE["allocations"] | {"nbytes": [1, 2]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"nbytes": [1]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"category": ["snack"]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"shape": [3]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"shape": ["ab"]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"nbytes": [float("inf")]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"nbytes": [2**63]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"start": [1.5]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"end": [True]}},
        PROFILE | {"allocations": PROFILE["allocations"] | {"layer": [3]}},
        PROFILE | {"layers": "dense"},
        PROFILE | {"source": "dreamt"},
        PROFILE | {"setup": [1]},
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_sentence(data):
    with pytest.raises(ValueError, match=r"memviz-profile.*write it"):
        interchange.profile_from_dict(data)


def test_a_damaged_estimate_is_refused():
    with pytest.raises(ValueError, match=r"memviz-estimate is damaged .*`phases`"):
        interchange.estimate_from_dict({"format": "memviz-estimate", "version": 1, "required_bytes": 1})


RECORDED = MemoryProfile(
    "steady_step", "measured", layers=("dense",), setup={"batch_size": 2}, allocator_peak_bytes=512,
    allocations=(
        Allocation(512, 400, 0, 3, "dense", Category.PARAMETER, "a, \"b\"", (10, 10), "float32", 256, 0.5, 0.75),
        Allocation(256, 0, 1, None, "dense", Category.GRADIENT),
    ),
)  # fmt: skip


def test_only_a_profile_is_saved(tmp_path):
    with pytest.raises(TypeError, match=r"such as estimate\.profile"):
        interchange.save(Estimate({}, 1, "build", "mse"), tmp_path / "e.json")
    assert not list(tmp_path.iterdir())


def test_a_saved_profile_is_loaded_equal(tmp_path):
    interchange.save(RECORDED, tmp_path / "step.json")
    assert interchange.load(tmp_path / "step.json") == RECORDED


def test_a_table_for_spreadsheets_has_a_row_per_allocation(tmp_path):
    interchange.save(RECORDED, tmp_path / "step.csv")
    with (tmp_path / "step.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["nbytes"], first["layer"], first["category"], first["op"]) == ("512", "dense", "parameter", 'a, "b"')
    assert (second["end"], second["shape"], second["address"]) == ("", "", "")
    with pytest.raises(ValueError, match=r"ends neither in .json nor in .csv"):
        interchange.save(RECORDED, tmp_path / "step.html")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut short or no memviz profile"),
        (json.dumps(PROFILE).encode()[:-40], "cut short or no memviz profile"),
        (b"\x80\x04\x95 a pickle", "cut short or no memviz profile"),
        (b"[" * 100_000, "cut short or no memviz profile"),
        (b"[1, 2]", "is no memviz profile"),
        (json.dumps(PROFILE | {"format": "something"}).encode(), "is no memviz profile"),
        (json.dumps(PROFILE | {"version": 7}).encode(), r"written by a newer memviz \(format 7, here 1\); update"),
        (json.dumps(PROFILE | {"version": "1"}).encode(), "damaged or not of version 1"),
        (json.dumps(PROFILE | {"source": None, "phase": 3}).encode(), "damaged"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "step.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as raised:
        interchange.load(path)
    assert "\n" not in str(raised.value)


def test_loading_executes_nothing(tmp_path):
    code = "__import__('os').mkdir('made')"
    columns = PROFILE["allocations"] | {"op": [code], "layer": [code]}
    (tmp_path / "step.json").write_text(json.dumps(PROFILE | {"allocations": columns, "layers": [code]}))
    profile = interchange.load(tmp_path / "step.json")
    assert profile.allocations[0].op == code
    assert not Path("made").exists()
