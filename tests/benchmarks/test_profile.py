"""The profile of a step: the same products in each mode, and the casts of those that convert."""

from __future__ import annotations

import re

import numpy as np

from benchmarks.step_time import profile


def test_profile_shows_the_same_products_and_more_casts_where_amp_tf_converts(monkeypatch, capsys):
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    assert (
        profile.main(["wide_mlp", "--size", "tiny", "--modes", "float32,amp_tf", "--rows", "100", "--turns", "1"]) == 0
    )
    lines = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")}
    products = np.sum([_counts(line) for op, line in lines.items() if op.endswith("MatMul")], axis=0)
    assert products[0] == products[1] > 0
    in_float32, in_amp_tf = _counts(lines["Cast"])
    assert in_amp_tf > in_float32


def _counts(line: str) -> list[int]:
    """How many kernels each mode ran; a dash is none."""
    found = [re.search(r"\((\d+)\)", cell) for cell in line.split("|")[2:-1]]
    return [int(match[1]) if match else 0 for match in found]
