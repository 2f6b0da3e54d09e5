"""The cards: how they are found by name, and what TensorFlow can use of each."""

import re

import pytest

from memviz.cards import card, cards, nearest, usable_bytes
from memviz.units import GIB, MIB


def test_the_cards_people_train_on_are_there():
    named = "T4", "V100", "A100", "L4", "H100", "H200", "RTX 3080", "RTX 3090", "RTX 4090"
    assert {*named} < cards().keys()
    assert len(cards()) >= 25


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("t4", "T4"), ("Tesla T4", "T4"), ("rtx3090", "RTX 3090"), ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("GeForce GTX 1080 Ti", "GTX 1080 Ti"), ("gtx-1080-ti", "GTX 1080 Ti"), ("GTX 1080", "GTX 1080"),
        ("Tesla V100-SXM2-16GB", "V100"), ("NVIDIA A100-SXM4-80GB", "A100 80GB"), ("A100-SXM4-40GB", "A100"),
    ],
)  # fmt: skip
def test_a_card_is_found_as_people_and_tensorflow_spell_it(spelled, name):
    assert card(spelled).name == name


def test_no_two_cards_have_a_name_in_common():
    spelled = [re.sub("[^a-z0-9]", "", n.lower()) for c in cards().values() for n in {c.name, *c.aliases}]
    assert len(spelled) == len({*spelled})


def test_an_unknown_card_has_neighbours():
    assert card("RTX 3099") is None
    assert nearest("RTX 3099")[0] == "RTX 3090"
    assert nearest("xyz") == []


@pytest.mark.parametrize(
    ("free", "capability", "reserved"),
    [
        (2 * GIB - 1, "9.0", 225), (2 * GIB, "5.2", 500), (8 * GIB, "6.1", 500), (15 * GIB, "7.5", 1050),
        (24 * GIB, "8.9", 1536), (80 * GIB, "9.0", 1800), (32 * GIB, "12.0", 1800),
    ],
)  # fmt: skip
def test_tensorflow_leaves_a_reserve(free, capability, reserved):
    assert usable_bytes(free, capability) == free - reserved * MIB


# "Created device ... with N MB memory", in public logs; what the context and the screen hold is not in it.
@pytest.mark.parametrize(("name", "printed_mib"), [("RTX A5000", 22233), ("RTX 4090", 21286), ("RTX 3060", 9491)])
def test_tensorflow_never_took_more_than_is_said_here(name, printed_mib):
    assert 0.85 * card(name).usable_bytes < printed_mib * MIB <= card(name).usable_bytes
