"""What ``print(amp_tf.report())`` shows."""

from __future__ import annotations

import pytest

from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.reporting import text
from amp_tf.reporting.schema import RewriteReport
from tests.reporting.test_schema import FUNCTION, TEXT, function, report

pytestmark = pytest.mark.usefixtures("local_rules")

SHOWN = """\
1 graph, 2 of 5 nodes converted to bfloat16 (matmuls and convolutions: 1 of 1), 2 casts
  1 of 1 MatMul
  1 of 2 Tanh
left in float32:
  1 node (1 Exp), such as 'deny1': its op is on the deny list
  1 node (1 Tanh), such as 'infer2': it uses values of the deny-list node 'deny1'"""


def test_what_was_converted_is_shown_by_op_and_what_was_left_by_reason():
    assert str(report()) == SHOWN


def test_functions_are_counted_with_their_graph():
    assert str(report(TEXT, function(FUNCTION))).splitlines()[:2] == [
        "2 graphs, 3 of 8 nodes converted to bfloat16 (matmuls and convolutions: 2 of 2), 4 casts",
        "  2 of 2 MatMul",
    ]


def test_many_nodes_of_one_reason_are_one_line():
    ops = ["Exp", "Exp", "Expm1", "L2Loss", "Pow", "Pow", "Pow"]
    lines = [f"n{number} = {op}({'x, x' if op == 'Pow' else 'x'})" for number, op in enumerate(ops)]
    shown = str(report("\n".join(["x = Placeholder()", "allow1 = MatMul(x, x)", *lines])))
    assert shown.splitlines()[-1] == ("  7 nodes (3 Pow, 2 Exp, 1 Expm1, …), such as 'n0': its op is on the deny list")


def test_nothing_converted_comes_with_the_reason():
    shown = str(report("x = Placeholder()\ny = Tanh(x)"))
    assert shown.splitlines()[0] == (
        "1 graph, 0 of 2 nodes converted, 0 casts: the graph has no node that the allow list converts"
    )
    assert "MatMul" not in shown
    assert str(RewriteReport()) == "0 graphs, 0 of 0 nodes converted, 0 casts"
    no_target = str(report(precision="auto", hardware=Hardware(cpu_has_bf16=False)))
    assert no_target.splitlines()[0].startswith("1 graph, 0 of 5 nodes converted, 0 casts: ")


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ((1, 1, 1, [Precision.FLOAT16], 1), "1 graph, 1 of 1 node converted to float16, 1 cast"),
        ((0, 0, 0, [], 0), "0 graphs, 0 of 0 nodes converted, 0 casts"),
        (
            (2, 1200, 3400, [Precision.BFLOAT16, Precision.FLOAT16], 1000),
            "2 graphs, 1,200 of 3,400 nodes converted to bfloat16 and float16, 1,000 casts",
        ),
    ],
)
def test_the_counts_are_one_line(counts, line):
    assert text.headline(*counts) == line
