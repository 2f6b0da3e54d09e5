import pytest

from memviz.advice.contributors import contributors
from memviz.profile import Allocation, Category, MemoryProfile


def held(*blocks):
    """(bytes, layer, category, op, shape) each."""
    made = [Allocation(-(-n // 256) * 256, n, 0, None, layer, c, op, shape) for n, layer, c, op, shape in blocks]
    return MemoryProfile("steady_step", "estimated", tuple(made))


ADAM = held(
    (4000, "dense", Category.PARAMETER, "dense/kernel", (10, 100)),
    (4000, "dense", Category.OPTIMIZER_STATE, "adam/dense_kernel_velocity", (10, 100)),
    (4000, "dense", Category.GRADIENT, "MatMul", (10, 100)),
    (4000, "dense", Category.OPTIMIZER_STATE, "adam/dense_kernel_momentum", (10, 100)),
    (4000, "dense", Category.TEMPORARY, "Mul", (10, 100)),
    (4000, "conv", Category.ACTIVATION, "Relu", (10, 10, 10)),
    (9000, "conv", Category.ACTIVATION, "Relu", (15, 15, 10)),
    (9000, "conv", Category.ACTIVATION_GRADIENT, "ReluGrad", (15, 15, 10)),
    (12, "loss", Category.TEMPORARY, "", ()),
)


def test_a_weight_and_all_of_its_size_are_one_and_named():
    first, second, third, *_ = contributors(ADAM, most=9)
    assert (first.layer, second.layer) == ("dense", "conv")
    assert first.text() == (
        "10 x 100 = 3.91 KiB, held five times: weight, gradient, optimizer state (velocity, momentum) and temporary"
    )
    assert (first.total_bytes, second.total_bytes) == (20_000, 18_000)
    assert second.text("decimal") == ("15 x 15 x 10 = 9.00 kB, held twice: activation and gradient of the activation")
    assert third.text() == "10 x 10 x 10 = 3.91 KiB, held once: activation"


def test_all_together_are_the_requested_bytes_and_most_is_a_limit():
    everything = contributors(ADAM, most=100)
    assert sum(each.total_bytes for each in everything) == sum(a.requested_nbytes for a in ADAM.allocations)
    assert len(contributors(ADAM, most=2)) == 2
    assert contributors(held()) == ()


def test_what_is_no_profile_is_refused():
    with pytest.raises(TypeError, match="profile is needed"):
        contributors(3)
