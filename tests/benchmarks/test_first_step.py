"""What the first step takes: reading oneDNN's account, the table, one real process."""

from __future__ import annotations

import pytest

from benchmarks.step_time import first_step
from benchmarks.step_time.first_step import FirstStep
from benchmarks.step_time.modes import modes

LINES = [
    "onednn_verbose,v1,info,oneDNN v3.7.0",
    "onednn_verbose,v1,primitive,create:cache_miss,cpu,matmul,brg:avx512_core_bf16,undef,,,,16x16:16x16,1.5",
    "onednn_verbose,v1,primitive,create:cache_hit,cpu,matmul,brg:avx512_core_bf16,undef,,,,16x16:16x16,0.25",
    "onednn_verbose,v1,primitive,create:cache_miss,cpu,reorder,jit:uni,undef,,,,16x16,0.5",
]


def test_only_kernels_that_were_made_count() -> None:
    assert first_step.kernel_ms(LINES) == pytest.approx(2.0)


def test_a_ratio_is_the_median_of_those_within_a_round() -> None:
    mode = modes("bfloat16")["amp_tf"]
    found = {
        ("ncf", "fit"): {
            "float32": [
                FirstStep(100.0, 0.0, 5.0, 200.0),
                FirstStep(200.0, 0.0, 5.0, 400.0),
                FirstStep(100.0, 0.0, 5.0, 200.0),
            ],
            "amp_tf": [
                FirstStep(110.0, 7.0, 9.0, 220.0),
                FirstStep(260.0, 8.0, 9.0, 520.0),
                FirstStep(105.0, 9.0, 9.0, 210.0),
            ],
        }
    }
    row = first_step.table(found, [mode]).splitlines()[-1]
    assert row == "| NCF | fit | 100 | 1.10 ± 0.06 | 1.10 | 8 | +3 | 5 | 9 |"


def test_a_process_tells_its_rewrites_apart() -> None:
    mode = modes("bfloat16")["amp_tf"]
    options = {"model": "ncf", "way": "predict", "size": "tiny", "batch": None, "precision": "bfloat16"}
    taken = first_step.measure({**options, "mode": "amp_tf"}, mode)
    assert 0 < taken.rewrite_ms < taken.total_ms
