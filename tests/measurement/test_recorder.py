"""Recordings of real trials: held against the allocator's own peak, Keras' own shapes, and the host's own files."""

import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest
import recorded
import troubled

from memviz import Category, estimate, measure, presets
from memviz.measurement import trace
from memviz.models.abstract import abstract_weights
from memviz.models.convnet import ConvNet
from memviz.profile import ROWS_BESIDE_LAYERS, UNATTRIBUTED
from memviz.units import MIB, tensor_bytes

BATCH = 8
BIRD_32 = ConvNet(name="bird", input_shape=(2938, 1, 64), dense=(128,))
OUT_OF_MEMORY = {
    "one_region": (BIRD_32, {"budget": "297 MiB"}),
    "growth": (BIRD_32, {"budget": "297 MiB", "memory_growth": True}),
    "third_step": (troubled.growing, {"budget": "40 MiB"}),
    "build": (troubled.wide_dense, {"budget": "16 MiB"}),
}


def recording(network, **options):
    options = {"batch_size": BATCH, "budget": "400 MiB", "device": "reference", "jit_compile": False, **options}
    return measure(network, record=True, **options)


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    folder = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(tempfile, "tempdir", str(folder))
        found = dict(zip(recorded.ALL, pool.map(recording, recorded.ALL.values()), strict=True))
    assert list(folder.iterdir()) == []
    return found


@pytest.fixture(scope="module")
def exhausted():
    with ThreadPoolExecutor(4) as pool:
        ran = pool.map(lambda case: recording(case[0], **{"batch_size": 1, **case[1]}), OUT_OF_MEMORY.values())
        return dict(zip(OUT_OF_MEMORY, ran, strict=True))


@pytest.mark.parametrize("name", recorded.ALL)
def test_the_peak_is_the_allocators_and_sums_are_exact(trials, name):
    trial = trials[name]
    assert trial.status == "completed", trial.error
    assert list(trial.phases) == ["build", "first_step", "steady_step"]
    assert trial.profile is trial.phases["steady_step"].profile
    for phase in trial.phases.values():
        profile = phase.profile
        assert (profile.source, profile.phase) == ("measured", phase.name)
        assert profile.peak_bytes == profile.allocator_peak_bytes
        assert profile.by_layer().to_numpy().sum() == profile.by_category().sum() == profile.peak_bytes
        assert set(profile.by_layer().index) <= {*profile.layers, *ROWS_BESIDE_LAYERS, UNATTRIBUTED}
    for phase in ("build", "first_step"):
        assert trial.phases[phase].profile.peak_bytes == trial.phases[phase].peak_bytes
    assert trial.profile.peak_bytes == trial.steps[3].peak_bytes


@pytest.mark.parametrize("name", recorded.ALL)
def test_what_is_large_has_a_layer_and_nearly_everything_has(trials, name):
    for phase in trials[name].phases.values():
        unknown = [a for a in phase.profile.allocations if a.layer == UNATTRIBUTED]
        # What TensorFlow takes while it optimizes the graph is no layer's; it bears the name of the whole function.
        unknown = [a for a in unknown if not a.op.startswith("__inference_")]
        assert max((a.nbytes for a in unknown), default=0) < 16 * 1024
        at_peak = sum(a.nbytes for a in phase.profile.at_peak() if a.layer == UNATTRIBUTED)
        assert at_peak < 0.005 * phase.profile.peak_bytes


def weight_sizes(layer):
    return [tensor_bytes(tuple(v.shape), v.dtype) for v in layer.trainable_variables]


def fresh(name):
    """The network as a fresh process names it."""
    network = recorded.ALL[name]
    with abstract_weights():
        return network.build() if isinstance(network, ConvNet) else network()


def flat(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from flat(layer)
        elif not isinstance(layer, keras.layers.InputLayer):
            yield layer


@pytest.mark.parametrize("name", recorded.ALL)
def test_weights_and_slots_stand_with_their_layers(trials, name):
    model = fresh(name)
    held = {(layer.name, c): 0 for layer in flat(model) for c in (Category.PARAMETER, Category.OPTIMIZER_STATE)}
    for a in trials[name].profile.at_peak():
        if (a.layer, a.category) in held:
            held[a.layer, a.category] += a.requested_nbytes
    for layer in flat(model):
        assert held[layer.name, Category.PARAMETER] == sum(weight_sizes(layer))
        assert held[layer.name, Category.OPTIMIZER_STATE] == 2 * sum(weight_sizes(layer))
    assert trials[name].profile.layers == tuple(layer.name for layer in flat(model))


@pytest.mark.parametrize("name", recorded.CHAINS)
def test_a_size_that_only_one_layer_has_is_never_another_layers(trials, name):
    layers = list(flat(fresh(name)))
    owners = {}
    for layer, after in zip(layers, [*layers[1:], None], strict=True):
        weights = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.TEMPORARY)
        for size in weight_sizes(layer):
            owners.setdefault(size, set()).update((c, layer.name) for c in weights)
        out = tensor_bytes((BATCH, *layer.output.shape[1:]), layer.output.dtype)
        passed_on = {(Category.ACTIVATION_GRADIENT, x.name) for x in (layer, after) if x is not None}
        owners.setdefault(out, set()).update({(Category.ACTIVATION, layer.name), *passed_on})
        if isinstance(after, keras.layers.RNN):
            owners[out].add((Category.ACTIVATION, after.name))  # its input, time first
        if isinstance(layer, keras.layers.Embedding):
            owners[out].add((Category.TEMPORARY, layer.name))  # the update of the rows that were looked up
    large = [a for a in trials[name].profile.allocations if a.requested_nbytes > 4096]
    known = [a for a in large if a.requested_nbytes in owners]
    for a in known:
        assert (a.category, a.layer) in owners[a.requested_nbytes], a
    # Not of temporaries: how often a kernel takes its scratch depends on how its threads happen to run.
    of_layers = [a for a in large if a.category != Category.TEMPORARY]
    covered = sum(a.requested_nbytes for a in of_layers if a.requested_nbytes in owners)
    assert covered > 0.9 * sum(a.requested_nbytes for a in of_layers)
    gradients = {(a.layer, a.requested_nbytes) for a in large if a.category == Category.GRADIENT}
    for layer in layers:
        # An embedding's gradient is sparse: the rows that were looked up.
        sparse = isinstance(layer, keras.layers.Embedding)
        wanted = set() if sparse else {(layer.name, size) for size in weight_sizes(layer) if size > 4096}
        assert wanted <= gradients


def test_blocks_carry_op_shape_time_and_an_address_of_their_own(trials):
    profile = trials["vgg"].profile
    matmul = next(a for a in profile.allocations if a.shape == (BATCH, 301) and a.category == Category.ACTIVATION)
    assert (matmul.layer, matmul.dtype) == ("dense", "float32")
    assert matmul.op.endswith(("MatMul", "Relu", "Add", "BiasAdd", "add", "AddV2"))
    assert 0 < matmul.start_seconds < matmul.end_seconds < trials["vgg"].seconds
    for position in range(0, profile.peak_position, 20):
        spans = sorted((a.address, a.address + a.nbytes) for a in profile.alive_at(position) if a.address is not None)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_the_steps_between_are_not_lost(trials):
    """A variable that an update moved (copy on write) still stands with its layer two steps later."""
    first, steady = (trials["vgg"].phases[p].profile for p in ("first_step", "steady_step"))
    kept = {a.requested_nbytes for a in first.allocations if a.category == Category.PARAMETER and a.end is None}
    assert kept == {a.requested_nbytes for a in steady.allocations if a.category == Category.PARAMETER and a.start == 0}


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_what_was_alive_when_memory_ran_out(exhausted, name):
    trial = exhausted[name]
    failure, alive = trial.failure, trial.at_failure
    assert trial.status == "out_of_memory"
    assert alive.phase == failure.phase
    assert alive.by_layer().to_numpy().sum() == alive.peak_bytes == failure.in_use_bytes
    assert failure.requested_bytes > failure.largest_free_bytes
    assert failure.free_bytes >= failure.largest_free_bytes
    # Everything is in use or free, but for the last few KiB of the region; beside the limit there are 2 MiB.
    beside = 0 if "memory_growth" in OUT_OF_MEMORY[name][1] else 2 * MIB
    left = failure.limit_bytes + beside - failure.in_use_bytes - failure.free_bytes
    assert 0 <= left < 16 * 1024 or failure.free_bytes == failure.limit_bytes
    assert "in one piece" in trial.error


def test_the_layers_of_a_step_that_died(exhausted):
    kernel = 2938 * 64 * 128 * 4
    one_region = exhausted["one_region"]
    blocks = [a for a in one_region.at_failure.allocations if a.requested_nbytes == kernel]
    assert {a.layer for a in blocks} == {"dense1"}
    assert sorted(a.category for a in blocks) == ["optimizer_state", "optimizer_state", "parameter"]
    assert list(one_region.phases) == ["build"]
    assert one_region.phases["build"].profile.peak_bytes == one_region.phases["build"].peak_bytes
    growing = [a for a in exhausted["growth"].at_failure.allocations if a.requested_nbytes == kernel]
    assert [(a.layer, a.category) for a in growing] == [("dense1", "temporary")] * 2
    assert exhausted["growth"].failure.phase == "build"
    in_sequence = exhausted["build"].at_failure.by_layer().sum(axis=1)
    assert in_sequence["dense"] > 8 * MIB


def test_a_recording_that_had_ended_says_so():
    trial = recording(troubled.growing, batch_size=2, budget="72 MiB", steps=9)
    assert trial.status == "out_of_memory"
    assert trial.at_failure is None
    assert "What was alive is not known: the recording ends with step 4." in trial.error


def test_cancelling_a_recording_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def stop(event):
        if event.kind == "phase" and event.phase == "steady_step":
            assert list(tmp_path.iterdir())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recording(presets.digits, on_event=stop)
    assert list(tmp_path.iterdir()) == []


def event(allocates, address, charged, in_use):
    return trace.Event(0, allocates, address, charged, charged, in_use, "op", None, "", False)


def test_a_trace_that_lacks_events_is_refused():
    with pytest.raises(ValueError, match=r"lacks allocations: after event 2 of 2.*512 B.*1,024 B"):
        trace.follow([event(True, 1, 256, 256), event(True, 2, 256, 1024)], 0)
    with pytest.raises(ValueError, match="lacks allocations"):
        trace.follow([event(False, 1, 256, 0)], 256)


def test_what_was_there_before_the_recording_is_kept_apart():
    blocks = trace.follow([event(False, 1, 256, 1792), event(True, 1, 512, 2304)], 1024)
    assert [(b.start, b.end, b.event.charged_bytes) for b in blocks] == [(-1, 0, 256), (1, None, 512), (-1, None, 768)]


def test_a_damaged_trace_and_a_trace_of_nothing_are_refused(tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(b"\x0a\xff not a trace")
    with pytest.raises(ValueError, match="damaged or cut short"):
        trace.read_trace(path, "bfc_cpu_allocator_for_gpu")
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="tells of no allocation"):
        trace.read_trace(path, "bfc_cpu_allocator_for_gpu")
    with pytest.raises(ValueError, match="wrote no dump"):
        trace.read_dump(str(tmp_path), "bfc_cpu_allocator_for_gpu")


def test_a_function_called_in_the_step_is_recorded_too():
    """Keras' grouped convolution on the CPU is a function of its own, compiled by XLA."""
    trial = recording(recorded.grouped)
    assert (trial.status, trial.note) == ("completed", "")
    assert trial.profile.peak_bytes == trial.profile.allocator_peak_bytes


def test_layers_of_the_same_name_have_rows_of_their_own():
    trial = recording(recorded.namesakes)
    assert trial.profile.layers == ("d", "d (2)", "loss (2)")
    held = trial.profile.by_layer()["parameter"]
    assert held[["d", "d (2)", "loss (2)"]].tolist() == [8 * 300 * 4 + 300 * 4, 300 * 200 * 4 + 200 * 4, 200 * 4 + 4]
    estimated = estimate(recorded.namesakes, batch_size=BATCH).profile
    assert estimated.by_layer()["parameter"].to_dict() == held.reindex(estimated.by_layer().index).to_dict()
