from __future__ import annotations

from amp_tf.oplists import table
from benchmarks import kernel_accuracy


def measured(*ops: str) -> dict[str, list[kernel_accuracy.Row]]:
    """The rows of some ops, in both types."""
    found: dict[str, list[kernel_accuracy.Row]] = {}
    for row in kernel_accuracy.measure(set(ops), "CPU:0", "of this process"):
        found.setdefault(row.op, []).append(row)
    return found


def test_the_ops_that_are_called_inaccurate_are_those_that_the_table_shows_to_be():
    # what is absolute is painted deny wherever it is
    shown = kernel_accuracy.inaccurate(kernel_accuracy.WRITTEN.read_text(encoding="utf-8"))
    assert shown - table.ABSOLUTE == table.INACCURATE


def test_the_table_has_all_that_is_measured():
    words = set(kernel_accuracy.WRITTEN.read_text(encoding="utf-8").replace(",", " ").replace(".", " ").split())
    assert {op.split()[-1] for op, _, _ in kernel_accuracy.cases()} <= words


def test_a_kernel_that_loses_results_is_told_from_those_that_do_not():
    rows = measured("Elu", "Tanh", "TanhGrad", "Maximum", "Mul")
    assert all(row.lost > kernel_accuracy.MOST for row in rows["Elu"])
    assert all(row.lost < 1 for op in ("Tanh", "TanhGrad", "Mul") for row in rows[op])  # rightly rounded, or nearly
    assert max(row.off for row in rows["TanhGrad"]) > kernel_accuracy.MOST  # 1 - y * y cancels by definition
    assert all(row.is_exact for row in rows["Maximum"])
