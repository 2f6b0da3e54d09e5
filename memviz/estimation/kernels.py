"""What each kernel does with memory on the CPU: what it aliases, forwards, allocates beside its outputs.

Every rule names the source file of TensorFlow that states it, or the recorded op that taught it. Rules are written in
shapes, dtypes and thread counts; an op without a rule allocates its outputs and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memviz.estimation.graph import Node, TensorType
from memviz.estimation.loops import BOUNDARIES
from memviz.units import dtype_bytes, tensor_bytes

INTRA_OP_THREADS = 2  # of the reference device

# The output is the input's own buffer (array_ops: Reshape, Squeeze, ...; resource_variable_ops.cc: ReadVariableOp).
ALIASES = frozenset({
    "Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot",
    # The graph optimizer sums large tensors in a temporary variable (memory_optimizer.cc, `RewriteAddN`).
    "Assign", "AssignAdd", "DestroyTemporaryVariable",
    "Switch", "_SwitchN",  # on the output that is taken (branches.py)
    *BOUNDARIES,  # of a loop
})  # fmt: skip

# What the caller feeds: batches and handles (see graph.py).
ARGUMENTS = frozenset({"_Arg", "ImmutableConst"})

# The kernel allocates nothing while it runs: handles, constants (made once, with the kernel), control only.
NO_MEMORY = frozenset({"NoOp", "VarHandleOp", "Const", "Assert", "_Retval"})

ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})

# Updates of single rows, beginnings of their names: from then on whoever reads the variable gets a copy of it, and any
# other update makes one (resource_variable_ops.cc, `copy_on_read_mode`).
SCATTERS = ("ResourceScatter", "ResourceSparseApply")

# What changes a list of tensors (list_kernels.cc), with the number of the input that it puts there.
CHANGES_LIST = {"TensorListPushBack": 1, "TensorListSetItem": 2, "TensorListPopBack": 0}

NOT_ON_DEVICE = frozenset({"resource", "variant", "string"})

# Kernels that say of themselves that they are cheap (`IsExpensive` in their class): they run at once, first in, first
# out, on the thread that made them ready. Every other CPU kernel counts as expensive (op_kernel.h).
CHEAP = frozenset({
    "Const", "_Arg", "_Retval", "ImmutableConst", "NoOp", "VarHandleOp", "Identity", "IdentityN", "Reshape", "Squeeze",
    "ExpandDims", "Shape", "ShapeN", "Size", "Rank", "StopGradient", "PreventGradient", "Placeholder", "Switch",
    "_SwitchN", "Merge", *BOUNDARIES, "LoopCond", "ControlTrigger",
})  # fmt: skip

_UNARY = (
    "Relu", "Relu6", "Elu", "Selu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Exp", "Log", "Log1p", "Expm1", "Sqrt",
    "Rsqrt", "Square", "Neg", "Abs", "Sign", "Inv", "Reciprocal", "Sin", "Cos", "Floor", "Ceil", "Round", "Rint",
    "Erf", "Erfc", "LogicalNot", "LeakyRelu", "Softmax", "LogSoftmax", "BiasAdd", "Invert", "ClipByValue",
)  # fmt: skip
_BINARY = (
    "Add", "AddV2", "Sub", "Mul", "MulNoNan", "Div", "RealDiv", "DivNoNan", "Maximum", "Minimum", "Pow",
    "SquaredDifference", "FloorDiv", "FloorMod", "ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "SigmoidGrad",
    "TanhGrad", "SoftplusGrad", "SoftsignGrad", "RsqrtGrad", "SqrtGrad", "InvGrad", "ReciprocalGrad", "LeakyReluGrad",
    "LogicalAnd", "LogicalOr", "Xdivy", "Xlogy", "BitwiseAnd",
)  # fmt: skip

# Inputs whose buffer the kernel takes for its output when nobody else holds it and shape and dtype match, in the order
# tried (op_kernel.cc `forward_input_or_allocate_output`; cwise_ops_common.h; bias_op.cc; relu_op.h; aggregate_ops.cc).
FORWARDS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_UNARY, (0,)),
    **dict.fromkeys(_BINARY, (0, 1)),
    "Select": (1, 2), "SelectV2": (1, 2), "_FusedBatchNormEx": (), "AddN": tuple(range(8)),
    "MaxPoolGrad": (0,),
    "SoftmaxCrossEntropyWithLogits": (0,), "SparseSoftmaxCrossEntropyWithLogits": (0,),
}  # fmt: skip

# The output slot that takes the input, where it is not the first (xent_op.cc, sparse_xent_op.cc: the gradient).
FORWARDS_TO = {"SoftmaxCrossEntropyWithLogits": 1, "SparseSoftmaxCrossEntropyWithLogits": 1}


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory a kernel takes beside its outputs and gives back when it ends.

    before_outputs: taken before the outputs are allocated. takes: the input whose buffer serves instead when nobody
    else holds it.
    """

    shape: tuple[int, ...]
    dtype: str
    before_outputs: bool = False
    takes: int | None = None

    @property
    def nbytes(self) -> int:
        """Requested bytes."""
        return tensor_bytes(self.shape, self.dtype)


def scratch(node: Node, inputs: Sequence[TensorType], *, gpu: bool = False) -> list[Scratch]:
    """The kernel's temporaries, in the order they are taken. Those of a GPU are known for few kernels."""
    rule = None if gpu and node.op not in _ALSO_ON_GPU else _SCRATCH.get(node.op)
    return rule(node, inputs) if rule else []


def _max_pool_grad(node: Node, inputs: Sequence[TensorType]) -> list[Scratch]:
    # maxpooling_op.cc, MaxPoolingGradOp: a copy of the pooled output (its own buffer when free), an int64 argmax.
    pooled = inputs[1]
    assert pooled.shape is not None
    return [Scratch(pooled.shape, pooled.dtype, True, takes=1), Scratch(pooled.shape, "int64", True)]


def _conv_grad_filter(node: Node, inputs: Sequence[TensorType]) -> list[Scratch]:
    # conv_grad_filter_ops.cc, Conv2DCustomBackpropFilterOp: im2col of as many images as fill 30 MiB, at least one.
    image, kernel, gradient = inputs[0].shape, node.outputs[0].shape, inputs[2].shape
    assert image is not None
    assert kernel is not None
    assert gradient is not None
    pixels, taps, out = math.prod(gradient[1:-1]), math.prod(kernel[:-1]), kernel[-1]
    work = pixels * taps + pixels * out + taps * out
    return [Scratch((_images(work, inputs[0].dtype), pixels, taps), inputs[0].dtype)]


def _conv_grad_input(node: Node, inputs: Sequence[TensorType]) -> list[Scratch]:
    # conv_grad_input_ops.h, Conv2DCustomBackpropInputOp: one image when one image keeps every thread busy (a work unit
    # per thread of at least the 256 KiB of a second-level cache), else as many as fill 30 MiB.
    kernel, gradient = inputs[1].shape, inputs[2].shape
    assert kernel is not None
    assert gradient is not None
    dtype = inputs[1].dtype
    pixels, taps, out = math.prod(gradient[1:-1]), math.prod(kernel[:-1]), kernel[-1]
    work = pixels * out + taps * out + pixels * taps
    parallel = gradient[0] == 1 or work // INTRA_OP_THREADS >= (256 << 10) // dtype_bytes(dtype)
    return [Scratch((1 if parallel else _images(work, dtype), pixels, taps), dtype)]


def _half_matmul(node: Node, inputs: Sequence[TensorType]) -> list[Scratch]:
    # matmul_op_impl.h, BaseBatchMatMulOp: 16-bit matrices are multiplied as float32: both and the product are copied.
    if inputs[0].dtype not in ("float16", "bfloat16"):
        return []
    shapes = (inputs[0].shape, inputs[1].shape, node.outputs[0].shape)
    return [Scratch(shape, "float32") for shape in shapes if shape is not None]


def _images(work: int, dtype: str) -> int:
    target = (30 << 20) // dtype_bytes(dtype)
    return -(-target // work)


def _sparse_cross_entropy(node: Node, inputs: Sequence[TensorType]) -> list[Scratch]:
    # sparse_xent_op.cc: one value per example.
    assert inputs[0].shape
    return [Scratch((inputs[0].shape[0],), inputs[0].dtype, True)]


def _depthwise(node: Node, inputs: Sequence[TensorType]) -> list[Scratch]:
    # depthwise_conv_op.cc: each thread copies the inputs of one output pixel, channels padded to a vector's width.
    return [_depthwise_buffer(inputs[1].shape, inputs[1].dtype)] * INTRA_OP_THREADS


def _depthwise_grad_filter(node: Node, inputs: Sequence[TensorType]) -> list[Scratch]:
    # depthwise_conv_grad_op.cc: a filter gradient per image, and each thread's buffer.
    images, buffer = inputs[0].shape, _depthwise_buffer(node.outputs[0].shape, inputs[0].dtype)
    assert images is not None
    return [Scratch((images[0], *buffer.shape), buffer.dtype), *[buffer] * INTRA_OP_THREADS]


def _depthwise_buffer(kernel: tuple[int, ...] | None, dtype: str) -> Scratch:
    assert kernel is not None
    vector = 64 // dtype_bytes(dtype)  # of AVX-512, in elements
    depth = -(-kernel[2] * kernel[3] // vector) * vector
    return Scratch((kernel[0] * kernel[1], depth), dtype)


_SCRATCH: dict[str, Callable[[Node, Sequence[TensorType]], list[Scratch]]] = {
    "MaxPoolGrad": _max_pool_grad,
    "Conv2DBackpropFilter": _conv_grad_filter,
    "Conv2DBackpropInput": _conv_grad_input,
    "DepthwiseConv2dNative": _depthwise,
    "DepthwiseConv2dNativeBackpropInput": _depthwise,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_grad_filter,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMulV3", "_FusedMatMul"), _half_matmul),
}
_ALSO_ON_GPU = frozenset({"SparseSoftmaxCrossEntropyWithLogits"})
