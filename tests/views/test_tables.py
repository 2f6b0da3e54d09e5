from dataclasses import replace

import pandas as pd
from profiles import bird_audio, block

from memviz.models import presets
from memviz.profile import Category, Phase
from memviz.units import MIB
from memviz.views.tables import (
    CATEGORIES,
    difference_table,
    difference_table_html,
    layer_table,
    layer_table_html,
    phase_table,
    phase_table_html,
)


def test_the_layer_table_is_by_layer_and_what_the_layers_are():
    profile = bird_audio()
    table = layer_table(profile, presets.bird_audio.plan)
    pd.testing.assert_frame_equal(table[CATEGORIES], profile.by_layer())
    assert table["total"].sum() == profile.peak_bytes
    assert table["parameters"].sum() == 770_482_865
    assert table.at["dense1", "largest_weight"] == "6,019,376 x 128"
    assert table.at["conv1", "output_shape"] == "1,489 x 255 x 16"
    assert abs(table["share"].sum() - 1) < 1e-12


def test_without_a_network_the_bytes_remain():
    profile = bird_audio()
    table = layer_table(profile)
    assert set(table["largest_weight"]) == {""}
    assert table["total"].sum() == profile.peak_bytes


def test_the_error_is_signed_and_only_where_both_are_known():
    estimated = {p: Phase(p, n) for p, n in (("build", 90), ("first_step", 110), ("steady_step", 100))}
    table = phase_table(estimated, {"first_step": Phase("first_step", 100), "build": Phase("build", 100)})
    assert table.index.tolist() == ["build", "first_step", "steady_step"]
    assert table["error"].round(6).tolist()[:2] == [-0.1, 0.1]
    assert pd.isna(table.at["steady_step", "error"])
    assert pd.isna(table.at["steady_step", "measured"])
    text = phase_table_html(table)
    assert "+10.0 %" in text
    assert "\N{MINUS SIGN}10.0 %" in text
    assert "not measured" in text


def test_a_wide_range_of_an_estimated_peak_is_said_and_a_narrow_one_is_not():
    estimated = {p: Phase(p, 110 * MIB) for p in ("build", "steady_step")}
    table = phase_table(estimated, {}, {"build": (110 * MIB, 111 * MIB), "steady_step": (102 * MIB, 125 * MIB)})
    assert table["highest"].tolist() == [111 * MIB, 125 * MIB]
    text = phase_table_html(table)
    assert "102.00 to 125.00 MiB, by TensorFlow" in text
    assert "111" not in text
    assert "range" not in phase_table_html(phase_table(estimated, {}))
    assert "phase" in phase_table_html(phase_table({}, {}))


def test_html_names_what_holds_nothing_and_escapes():
    table = layer_table(bird_audio(), presets.bird_audio.plan).rename(index={"conv2": "<b>"})
    text = layer_table_html(table)
    assert "Nothing at the peak: buffer, activation gradient, temporary." in text
    assert "&lt;b&gt;" in text
    assert 'title="3,081,920,512 B"' in text
    assert "770,482,865" in text


def test_a_difference_is_what_one_has_more_than_the_other_row_by_row():
    before = bird_audio()
    more = block((1 << 20,), "float32", "new", Category.ACTIVATION)
    fewer = tuple(a for a in before.allocations if a.layer != "conv2")
    after = replace(before, allocations=(*fewer, more), layers=(*(n for n in before.layers if n != "conv2"), "new"))
    table = difference_table(before, after)
    assert table.to_numpy().sum() == after.peak_bytes - before.peak_bytes
    assert table.at["new", "activation"] == 4 << 20
    assert (table.loc["conv2"] == -before.by_layer().loc["conv2"]).all()
    assert not table.loc["dense1"].any()
    text = difference_table_html(table)
    assert "+4.00 MiB" in text
    assert "\N{MINUS SIGN}" in text
    assert "dense1" not in text
    assert not difference_table(before, before).any(axis=None)


def test_a_chosen_row_is_marked():
    text = layer_table_html(layer_table(bird_audio(), presets.bird_audio.plan), chosen="conv2")
    assert text.count("memviz-chosen") == 1
    assert '<span class="memviz-chosen">conv2</span>' in text
