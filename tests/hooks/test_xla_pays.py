from __future__ import annotations

import pytest

from amp_tf.config import AmpConfig
from amp_tf.hooks import xla_pays
from amp_tf.oplists import table, xla_cpu
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.lists import build_lists

CPU = Hardware(cpu_has_bf16=True)
GPU = Hardware(gpu_capabilities=((9, 0),), cpu_has_bf16=True)


def test_every_op_that_the_cpu_table_allows_and_xla_can_meet_was_measured():
    # Fused ops are made by Grappler's remapper, which never sees a function for XLA.
    allowed = {row.op for row in table.ROWS if row.table == table.CPU and row.op_list == table.ALLOW}
    assert {op for op in allowed if "Fused" not in op} == {row.op for row in xla_cpu.ROWS}


@pytest.mark.parametrize(
    ("config", "hardware", "weighed"),
    [
        (AmpConfig(), CPU, True),
        (AmpConfig(target="cpu"), GPU, True),
        (AmpConfig(), GPU, False),
        (AmpConfig(target="gpu"), CPU, False),
        (AmpConfig(precision="bfloat16"), CPU, False),
        (AmpConfig(ignore_performance=True), CPU, False),
        (AmpConfig(), Hardware(), False),
    ],
)
def test_rows_decide_only_where_the_user_left_the_choice_and_the_choice_is_the_cpu(config, hardware, weighed):
    assert xla_pays.is_weighed(config, hardware) is weighed


def test_ops_that_do_not_pay_leave_the_allow_list_unless_the_user_added_them():
    lists = build_lists(table.CPU, xla_pays.without_unprofitable(AmpConfig()))
    assert xla_cpu.UNPROFITABLE
    assert xla_cpu.UNPROFITABLE.isdisjoint(lists.members(table.ALLOW))
    asked = build_lists(table.CPU, xla_pays.without_unprofitable(AmpConfig(allow_add=("MatMul",))))
    assert "MatMul" in asked.members(table.ALLOW)


def test_a_row_pays_only_if_it_is_faster_both_inside_and_alone():
    for row in xla_cpu.ROWS:
        assert not row.pays or min(row.inside, row.alone) >= 1.2
