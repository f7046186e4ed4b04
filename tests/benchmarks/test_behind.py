"""Rows that are behind, and what their kernels say."""

from __future__ import annotations

import re

from benchmarks.step_time import __main__ as step_time
from benchmarks.step_time import behind
from benchmarks.step_time.profile import Figure, Profile
from benchmarks.step_time.suite import Row


def _row(model, mode, *ms):
    return Row(model, "fit", mode, batch=8, ms=ms)


def test_rows_are_those_behind_the_best_other_and_the_furthest_comes_first():
    slow = [_row("vgg16", "float32", 4.0), _row("vgg16", "policy", 3.0), _row("vgg16", "amp_tf", 4.0)]
    slower = [_row("unet", "float32", 4.0), _row("unet", "policy", 9.0), _row("unet", "amp_tf", 8.0)]
    as_fast = [_row("bert", "float32", 4.0), _row("bert", "policy", 3.0), _row("bert", "amp_tf", 3.05)]
    found = [
        (ours.model, ours.mode, other.mode) for ours, other in behind.rows_behind([*slow, *slower, *as_fast], 0.97)
    ]
    assert found == [("unet", "amp_tf", "float32"), ("vgg16", "amp_tf", "policy")]


def test_ops_count_whatever_library_computes_them_and_small_differences_are_left_out():
    ours = Profile(_row("bert", "amp_tf", 10.0), {"_MklNativeFusedMatMul": Figure(3, 4), "Cast": Figure(2, 1)})
    ops = {"_ZenFusedMatMul": Figure(1.5, 3), "_ZenMatMul": Figure(1, 1), "Cast": Figure(1.95, 1), "Tanh": Figure(1, 1)}
    assert behind.differences(ours, Profile(_row("bert", "zentf", 10.0), ops)) == [("Tanh", -1.0), ("MatMul", 0.5)]


def test_what_was_measured_is_measured_again_with_the_kernels_of_both(tmp_path, capsys):
    measured = str(tmp_path / "measured.json")
    asked = ["--size", "tiny", "--seconds", "0.02"]
    which = ["--models", "wide_mlp", "--ways", "predict", "--modes", "float32,amp_tf", "--rounds", "2"]
    step_time.main([*which, *asked, "--json", measured])
    capsys.readouterr()
    assert behind.main([measured, "--below", "1e9", "--turns", "2", *asked]) == 0
    *head, row = capsys.readouterr().out.splitlines()
    assert [len(line.split("|")) for line in head] == [len(row.split("|"))] * 2
    assert re.search(r"\| predict \| \d\.\d+ ± \d\.\d+ \(float32\) \| \d\.\d+ ± \d\.\d+ \|", row)
