from __future__ import annotations

from amp_tf.oplists import table
from benchmarks.xla_cpu_ops import CASES


def test_every_op_that_the_cpu_table_allows_and_xla_can_meet_is_measured():
    # Fused ops are made by Grappler's remapper, which never sees a function for XLA.
    allowed = {row.op for row in table.ROWS if row.table == table.CPU and row.op_list == table.ALLOW}
    assert {op for op in allowed if "Fused" not in op} <= {case.op for case in CASES}
