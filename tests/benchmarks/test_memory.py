"""Real processes are measured at the tiny size; the search for the largest batch and the tables on made-up figures."""

from __future__ import annotations

import pytest

from benchmarks import memory
from benchmarks.memory import Point
from benchmarks.step_time.modes import modes


@pytest.mark.parametrize("mode", ["amp_tf", "memory"])
def test_a_process_tells_what_its_training_steps_took_without_tensorflow_itself(mode):
    mib, live = memory.measure("wide_mlp", "tiny", "bfloat16", modes("bfloat16")[mode], 8192)
    assert 0 < live < mib < 400  # the process itself takes more


def test_a_process_that_fails_is_named_with_its_reason():
    with pytest.raises(RuntimeError, match=r"no_such_model, float32, batch 4: exit status 1(?s:.*)KeyError"):
        memory.measure("no_such_model", "tiny", "bfloat16", modes("bfloat16")["float32"], 4)


def test_the_largest_batch_is_found_on_the_line_and_checked_by_measuring():
    points = [(8, 180.0), (16, 260.0)]  # 100 MiB and 10 for each example
    asked = []

    def heavier_than_the_line(batch):
        asked.append(batch)
        return 100 + 12.0 * batch

    found = memory.largest_batch(points, 500.0, heavier_than_the_line)
    assert found is not None
    assert asked[0] == 40
    assert (found.batch, found.mib) == (33, 496.0)
    assert memory.largest_batch(points, 90.0, heavier_than_the_line) is None


def test_the_search_goes_on_where_the_line_was_too_steep():
    found = memory.largest_batch([(16, 56.0), (32, 125.0)], 254.0, lambda batch: 3.9 * batch)
    assert found is not None
    assert found.batch == 65  # 61 on the line


def test_a_batch_that_is_measured_already_is_not_measured_again():
    found = memory.largest_batch([(8, 180.0), (16, 260.0)], 260.0, lambda batch: pytest.fail(str(batch)))
    assert found == Point("", "", 16, 260.0)


def test_tables_give_ratios_to_float32():
    figures = zip(memory.COMPARED, (200.0, 150.0, 110.0), strict=True)
    points = [
        memory.medians("bert", mode, 16, [(mib, 90.0), (mib + 9, 80.0), (mib - 9, 70.0)]) for mode, mib in figures
    ]
    assert memory.memory_table(points)[-1] == "| BERT encoder | 16 | 200 | 150 | 110 | 0.75 | 0.55 | 80 | 80 | 80 |"
    largest = {("bert", "policy"): Point("", "", 24, 199.0), ("bert", "amp_tf"): Point("", "", 28, 198.0)}
    (*_, last) = memory.batch_table({"bert": points[0]}, largest, ["float32", "policy"])
    assert last == "| BERT encoder | 200 | 16 | 24 (199 MiB) | 1.50 |"
    line = memory.batch_table({"bert": points[0]}, largest)[-1]
    assert line == "| BERT encoder | 200 | 16 | 24 (199 MiB) | 28 (198 MiB) | 1.75 |"
