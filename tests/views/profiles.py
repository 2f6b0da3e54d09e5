"""Small profiles with known numbers, for the views' tests."""

from memviz.models import presets
from memviz.profile import Allocation, Category, MemoryProfile
from memviz.units import tensor_bytes


def block(shape, dtype, layer, category, op=""):
    requested = tensor_bytes(shape, dtype)
    return Allocation(-(-requested // 256) * 256, requested, 0, None, layer, category, op, shape, dtype)


def bird_audio(phase="steady_step"):
    """Weights, slots and gradients of the bird-audio network, and an activation: every byte counted by hand."""
    held = [block((1, 1491, 257, 1), "float32", "input", Category.INPUT)]
    for layer in presets.bird_audio.plan:
        for shape in layer.parameter_shapes:
            held.append(block(shape, "float32", layer.name, Category.PARAMETER))
            held += [block(shape, "float32", layer.name, Category.OPTIMIZER_STATE, f"adam/{slot}") for slot in "mv"]
    held.append(block((6019376, 128), "float32", "dense1", Category.GRADIENT, "MatMul"))
    held.append(block((1, 1489, 255, 16), "float32", "conv1", Category.ACTIVATION, "Relu"))
    layers = tuple(layer.name for layer in presets.bird_audio.plan)
    return MemoryProfile(phase, "estimated", tuple(held), layers)
