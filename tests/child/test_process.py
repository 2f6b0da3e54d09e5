import json
import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from processes import PATIENCE, gone, open_fds

from memviz.child.process import TAIL_BYTES, ChildEndedError, ChildProcess


@pytest.fixture
def child():
    before = open_fds(), threading.active_count()
    process = ChildProcess("talker", env={"MEMVIZ_TEST_EXTRA": "given"})
    yield process
    process.kill()
    assert (open_fds(), threading.active_count()) == before
    assert gone(process.pid)


def ask(child, **order):
    child.send(order)
    return child.receive(PATIENCE)


def test_messages_go_both_ways_whatever_their_size(child):
    for value in (1, None, "zwölf\n", [1.5, {"a": [None]}], "x" * 3_000_000):
        assert ask(child, do="echo", value=value) == {"echo": value}


def test_a_child_has_the_path_and_directory_of_its_parent(child):
    told = ask(child, do="describe")
    assert [e for e in told["path"] if e in sys.path] == list(dict.fromkeys(e for e in sys.path if e))
    assert told["cwd"] == os.getcwd()
    assert told["pid"] == child.pid != os.getpid()
    assert told["extra"] == "given"


def test_a_child_is_the_first_to_go_when_memory_runs_short(child):
    assert ask(child, do="describe")["oom_score_adj"] == 1000


def test_flooding_stdout_and_stderr_blocks_nothing_and_the_ends_are_kept(child):
    assert ask(child, do="chatter", size=5_000_000) == {"done": True}
    child.kill()
    assert child.output_tail.endswith("o" * 100 + "end of stdout\n" + "e" * 100 + "end of stderr")
    assert len(child.output_tail) == TAIL_BYTES


def test_messages_of_several_threads_are_not_mixed(child):
    child.send({"do": "send from threads"})
    assert sorted(child.receive(PATIENCE)["n"] for _ in range(8)) == list(range(8))


def test_what_is_no_message_is_a_clear_error(child):
    with pytest.raises(RuntimeError, match="not a message: b'Traceback: no JSON'"):
        ask(child, do="garbage")


def test_waiting_ends_in_time(child):
    with pytest.raises(TimeoutError):
        child.receive(0.01)
    assert ask(child, do="echo", value=1) == {"echo": 1}


@pytest.mark.parametrize(
    ("order", "code"), [({"do": "exit", "code": 7}, 7), ({"do": "exit", "code": 0}, 0), ({"do": "abort"}, -6)]
)
def test_a_child_that_ends_keeps_its_exit_code(child, order, code):
    with pytest.raises(ChildEndedError):
        ask(child, **order)
    assert child.kill() == code == child.kill()
    with pytest.raises(ChildEndedError):
        child.send({"do": "echo", "value": 1})
    with pytest.raises(ChildEndedError):
        child.receive(0)


def test_kill_from_another_thread_wakes_a_waiting_receive(child):
    assert ask(child, do="sleep") == {"asleep": True}
    threading.Timer(0.1, child.kill).start()
    with pytest.raises(ChildEndedError):
        child.receive(PATIENCE)
    assert child.kill() == -signal.SIGKILL


def test_kill_takes_the_childs_own_children_along(child):
    grandchild = ask(child, do="grandchild", apart=False)["pid"]
    child.kill()
    assert gone(grandchild)


def test_a_grandchild_that_left_the_group_is_not_waited_for(child):
    grandchild = ask(child, do="grandchild", apart=True)["pid"]
    try:
        assert child.kill() == -signal.SIGKILL
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_a_child_ends_when_its_parent_is_killed():
    script = """
import sys, time
from memviz.child.process import ChildProcess
child = ChildProcess("talker")
child.send({"do": "sleep"}); child.receive(60)
print(child.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        pid = json.loads(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    assert gone(pid)


def test_no_child_is_left_where_the_module_does_not_exist():
    before = open_fds()
    child = ChildProcess("no_such_module_anywhere")
    with pytest.raises(ChildEndedError):
        child.receive(PATIENCE)
    assert child.kill() == 1
    assert "no_such_module_anywhere" in child.output_tail
    assert open_fds() == before
