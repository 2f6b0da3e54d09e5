"""The texts are TensorFlow 2.21's own, recorded from trials that ran out of memory; `test_trial` provokes them anew."""

from memviz.failure import Failure, failure_sentences, parse_failure

EAGER = (
    "{{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:CPU:0}} OOM when allocating tensor "
    "with shape[6019376,128] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator "
    "bfc_cpu_allocator_for_gpu [Op:AddV2] name: "
)
IN_A_FUNCTION = """Graph execution error:

Detected at node gradient_tape/digits_1/conv2_1/convolution/Conv2DBackpropFilter defined at (most recent call last):
<stack traces unavailable>
OOM when allocating tensor with shape[159,256,144] and type half on /job:localhost/replica:0/task:0/device:GPU:0 by \
allocator GPU_0_bfc
\t [[{{node gradient_tape/digits_1/conv2_1/convolution/Conv2DBackpropFilter}}]]
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to \
RunOptions for current allocation info. This isn't available when running in Eager mode.
 [Op:__inference_train_step_1234]"""


def test_an_operation_that_ran_by_itself_is_named_by_its_type():
    expected = Failure("build", "AddV2", (6019376, 128), "float32", 6019376 * 128 * 4, 9513 * 2**20)
    assert parse_failure(EAGER, "build", 9513 * 2**20) == expected


def test_an_operation_in_a_function_is_named_by_its_node():
    failure = parse_failure(IN_A_FUNCTION, "steady_step", None)
    assert failure.op == "gradient_tape/digits_1/conv2_1/convolution/Conv2DBackpropFilter"
    assert (failure.shape, failure.dtype, failure.requested_bytes) == ((159, 256, 144), "float16", 159 * 256 * 144 * 2)


def test_a_compiled_step_asks_as_a_whole():
    text = "Out of memory while trying to allocate 16.22MiB. [Op:__inference_train_step_858]"
    failure = parse_failure(text, "first_step", 16 * 2**20)
    assert failure == Failure("first_step", "the compiled step", None, "", 17_007_903, 16 * 2**20, in_graph=True)
    said = failure_sentences(failure, 32)
    assert "first step: the compiled step asked for 16.22 MiB; the limit is 16.00 MiB." in said
    assert "a smaller batch" in said


def test_a_scalar_and_a_silent_error():
    text = EAGER.replace("[6019376,128]", "[]")
    assert parse_failure(text, "build", None).shape == ()
    assert parse_failure(text, "build", None).requested_bytes == 4
    silent = parse_failure("failed to allocate memory [Op:Mul]", "first_step", 100)
    assert silent == Failure("first_step", "Mul", limit_bytes=100)


def test_the_sentences_name_phase_operation_shape_limit_and_way_out():
    text = failure_sentences(parse_failure(EAGER, "build", 9513 * 2**20), 32)
    for part in (
        "the build",
        "AddV2",
        "2.87 GiB",
        "6,019,376 x 128",
        "float32",
        "9.29 GiB",
        "Way out: a larger budget",
    ):
        assert part in text
    silent = failure_sentences(Failure("first_step", "Mul"), 32)
    assert silent.startswith("Out of memory in the first step: Mul could not get its memory. Way out:")


def test_only_ways_out_that_can_help_are_named():
    slots, step = parse_failure(EAGER, "first_step", None), parse_failure(IN_A_FUNCTION, "steady_step", None)
    assert "batch" not in failure_sentences(slots, 32)  # the slots are as large for any batch
    assert "optimizer" in failure_sentences(slots, 32)
    assert "a smaller batch" in failure_sentences(step, 2)
    assert "batch" not in failure_sentences(step, 1)
    assert "optimizer" not in failure_sentences(parse_failure(EAGER, "build", None), 1)
