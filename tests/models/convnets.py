"""Any small ConvNet."""

from hypothesis import assume
from hypothesis import strategies as st

from memviz.models.convnet import ACTIVATIONS, HEADS, PADDINGS, POOLINGS, ConvBlock, ConvNet

BLOCKS = st.builds(
    ConvBlock,
    filters=st.integers(1, 5),
    kernel=st.integers(1, 4),
    strides=st.integers(1, 3),
    padding=st.sampled_from(PADDINGS),
    activation=st.sampled_from(ACTIVATIONS),
    batch_norm=st.booleans(),
    pooling=st.sampled_from(POOLINGS),
    pool_size=st.integers(1, 3),
    dropout=st.sampled_from([0.0, 0.25]),
)


@st.composite
def convnets(draw):
    options = {
        "input_shape": tuple(draw(st.integers(1, 24)) for _ in range(3)),
        "blocks": tuple(draw(st.lists(BLOCKS, max_size=3))),
        "head": draw(st.sampled_from(HEADS)),
        "dense": tuple(draw(st.lists(st.integers(1, 9), max_size=2))),
        "outputs": draw(st.integers(1, 4)),
        "dtype_policy": draw(st.sampled_from([None, "float16", "mixed_bfloat16"])),
    }
    try:
        return ConvNet(**options)
    except ValueError as error:  # a kernel larger than its input; whether rightly so: the test after the next
        assume("does not fit" not in str(error))
        raise
