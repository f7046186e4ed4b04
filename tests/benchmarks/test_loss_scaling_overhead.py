"""The overhead benchmark runs, and what it counts is nothing: one trace, no operation that leaves the graph."""

from benchmarks import loss_scaling_overhead as overhead


def test_a_step_is_measured_for_every_wrapper_and_its_counts_are_clean():
    row = overhead.measure("mlp", "train", False, {"global_clipnorm": 1.0}, rounds=1)
    assert all(row[f"{name}_ms"] > 0 for name in overhead.VARIANTS)
    assert row["traces"] == 1
    assert row["ops_that_leave_the_graph"] == 0
    assert row["variables"] >= 10
