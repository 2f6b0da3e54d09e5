import pytest

from memviz.estimation.branches import branches, has_branches
from memviz.estimation.folding import folded
from memviz.estimation.graph import Node, StepGraph, TensorType

SCALAR, LARGE = TensorType((), "float32"), TensorType((1000,), "float32")
PAIR = (SCALAR, SCALAR)


def node(op, *inputs, controls=(), outputs=(SCALAR,)):
    return Node(op.lower(), op, inputs, controls, outputs, {})


# A predicate, a value, its Switch; a large op where it is true, a small one where it is false; their Merge, a reader.
CONDITIONAL = [
    node("_Arg"), node("_Arg"), node("Switch", (1, 0), (0, 0), outputs=PAIR),
    node("Fill", (2, 1), outputs=(LARGE,)), node("Neg", (2, 0)), node("Merge", (4, 0), (3, 0), outputs=PAIR),
    node("Exp", (5, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("smaller", "dead"), [(False, {4}), (True, {3})])
def test_the_larger_branch_is_taken_unless_the_smaller_one_is_asked_for(smaller, dead):
    found = branches(CONDITIONAL, smaller=smaller)
    assert {index for index, is_dead in enumerate(found.dead) if is_dead} == dead
    assert found.taken == {2: int(not smaller)}
    assert found.is_alive((2, int(not smaller)))
    assert not found.is_alive((2, int(smaller)))


def test_what_only_waits_for_a_dead_node_is_dead_and_so_is_a_conditional_within():
    inner = [
        node("Exp", (4, 0)), node("NoOp", controls=(7,), outputs=()),
        node("Switch", (7, 0), (0, 0), outputs=PAIR), node("Merge", (9, 0), (9, 1), outputs=PAIR),
    ]  # fmt: skip
    found = branches([*CONDITIONAL, *inner])
    assert [index for index, is_dead in enumerate(found.dead) if is_dead] == [4, 7, 8, 9, 10]


@pytest.mark.parametrize(("smaller", "taken"), [(False, 2), (True, 0)])
def test_of_many_branches_one_is_taken(smaller, taken):
    nodes = [
        node("_Arg"), node("_Arg"), node("_SwitchN", (1, 0), (0, 0), outputs=(SCALAR,) * 3), node("Neg", (2, 0)),
        node("Fill", (2, 1), outputs=(TensorType((9,), "float32"),)), node("Fill", (2, 2), outputs=(LARGE,)),
        node("Merge", (3, 0), (4, 0), (5, 0), outputs=PAIR),
    ]  # fmt: skip
    found = branches(nodes, smaller=smaller)
    assert found.taken == {2: taken}
    assert [n for n, is_dead in enumerate(found.dead) if is_dead] == [n for n in (3, 4, 5) if n != 3 + taken]


def test_a_graph_without_conditionals_has_none():
    plain = [node("_Arg"), node("Exp", (0, 0))]
    assert not has_branches(plain)
    assert has_branches(CONDITIONAL)
    assert branches(plain).dead == [False, False]


def test_of_two_constants_the_one_that_arrives_is_not_known_before():
    nodes = (
        node("Const"),
        node("Const"),
        node("Merge", (0, 0), (1, 0), outputs=PAIR),
        node("Exp", (2, 0)),
        node("Neg", (3, 0)),
    )
    graph = StepGraph(nodes, {}, {})
    assert folded(graph) is graph
