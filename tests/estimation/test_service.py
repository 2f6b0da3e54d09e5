import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
from processes import PATIENCE, gone, open_fds

from memviz import presets
from memviz.estimation.service import EstimationService, shared_service
from memviz.models.network import Network
from memviz.setup import TrainingSetup

DIGITS, SETUP = Network.of(presets.digits), TrainingSetup(batch_size=8, jit_compile=False, device="reference")


@pytest.fixture(scope="module")
def service():
    before = open_fds(), threading.active_count(), psutil.Process().children()
    service = EstimationService()
    yield service
    service.close()
    service.close()
    assert (open_fds(), threading.active_count(), psutil.Process().children()) == before


def aborting():
    os.abort()


def slow():
    time.sleep(600)


def test_it_answers_what_a_script_would_get(service):
    from memviz.estimation.estimate import estimate_traced, trace_training

    assert service.estimate(DIGITS, SETUP) == estimate_traced(trace_training(DIGITS, SETUP), SETUP)


@pytest.mark.parametrize("within", [{"budget_bytes": 64 << 20}, {"budget_bytes": 1 << 20}, {"memory_growth": True}])
def test_another_budget_is_answered_from_the_same_trace(service, within):
    from memviz.estimation.estimate import estimate_traced, trace_training

    setup = replace(SETUP, **within)
    service.estimate(DIGITS, SETUP)
    assert service.estimate(DIGITS, setup) == estimate_traced(trace_training(DIGITS, setup), setup)


def test_the_child_stays_warm_and_sees_no_gpu(service):
    service.estimate(DIGITS, SETUP)
    pid = service._child.pid
    service.estimate(DIGITS, SETUP)
    assert service._child.pid == pid
    assert psutil.Process(pid).environ()["CUDA_VISIBLE_DEVICES"] == ""


def test_several_threads_get_each_their_own_answer(service):
    batches, answers = (1, 2, 4, 8), {}

    def ask(batch):
        answers[batch] = service.estimate(DIGITS, TrainingSetup(batch_size=batch, device="reference"))

    threads = [threading.Thread(target=ask, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert {b: answers[b].profile.setup["batch_size"] for b in batches} == {b: b for b in batches}


def test_a_network_that_is_not_possible_raises_the_same_sentence_here(service):
    def no_model():
        return 3

    with pytest.raises(ValueError, match=r"The function no_model returned 3; it must return a keras\.Model"):
        service.estimate(Network.of(no_model), SETUP)
    assert service.estimate(DIGITS, SETUP).peak_bytes > 0


def test_what_a_builder_sets_for_all_of_keras_is_gone_for_the_next_one(service):
    def unsettling():
        import os

        import keras
        import tensorflow as tf

        os.chdir("/")
        keras.config.set_floatx("float64")
        keras.config.set_image_data_format("channels_first")
        keras.config.set_dtype_policy("float16")
        tf.config.run_functions_eagerly(True)
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def settled():
        import os

        import keras
        import tensorflow as tf

        found = (
            keras.config.floatx(),
            keras.config.image_data_format(),
            tf.config.functions_run_eagerly(),
            os.getcwd(),
        )
        raise RuntimeError(f"found {found}")

    for build in (settled, unsettling, settled):
        with contextlib.suppress(ValueError):
            service.estimate(Network.of(build), SETUP)
    expected = re.escape(str(("float32", "channels_last", False, os.getcwd())))
    with pytest.raises(ValueError, match=expected):
        service.estimate(Network.of(settled), replace(SETUP, batch_size=2))
    assert service.estimate(Network.of(unsettling), SETUP).profile.allocations


def test_a_child_that_died_is_started_anew(service):
    service.start()
    dead = service._child.pid
    os.kill(dead, signal.SIGKILL)
    while not service._child.ended:
        time.sleep(0.01)
    assert service.estimate(DIGITS, SETUP).peak_bytes > 0
    assert service._child.pid != dead


def test_a_network_that_takes_the_child_down_is_an_error_and_the_next_one_is_answered(service):
    with pytest.raises(RuntimeError, match="ended with code -6"):
        service.estimate(Network.of(aborting), SETUP)
    assert service.estimate(DIGITS, SETUP).peak_bytes > 0


def test_close_ends_an_estimate_under_way():
    service, raised = EstimationService(), []

    def ask():
        try:
            service.estimate(Network.of(slow), SETUP)
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while service._child is None:
        time.sleep(0.01)
    child = service._child
    service.close()
    thread.join(PATIENCE)
    assert len(raised) == 1
    assert not psutil.pid_exists(child.pid)


def test_the_shared_one_ends_with_its_process():
    script = """
from memviz.estimation.service import shared_service
service = shared_service()
service.start()
print(service._child.pid)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert gone(int(done.stdout))
    assert shared_service() is shared_service()


def normed():
    import keras

    stack = [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    return keras.Sequential([*stack, keras.layers.Flatten(), keras.layers.Dense(2)])


def test_the_graphs_of_earlier_estimates_do_not_stay():
    """TensorFlow's registry of gradients held each of them: a day of estimates filled gigabytes."""
    from tensorflow.python.framework.func_graph import FuncGraph

    from memviz.estimation.estimate import trace_training
    from memviz.estimation.worker import _graphs_let_go

    def graphs():
        gc.collect()
        return sum(isinstance(each, FuncGraph) and each.name == "train_step" for each in gc.get_objects())

    before = graphs()
    for batch_size in (2, 3, 4):
        with _graphs_let_go():
            trace_training(Network.of(normed), replace(SETUP, batch_size=batch_size))
    assert graphs() == before
