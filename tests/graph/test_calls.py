"""What runs inside a call."""

from __future__ import annotations

import pytest

import amp_tf
from amp_tf.graph import calls
from amp_tf.graph.calls import Callees
from amp_tf.oplists.hardware import Hardware
from tests.small_graphs import function, graph

PRODUCTS = frozenset({"MatMul"})


def calling(name, callee):
    return function(
        f"function {name}(x: float32) -> (y: float32)\nc = PartitionedCall(x) Tin=[float32] Tout=[float32] f={callee}\n"
        "return y = c:output:0"
    )


def product(name):
    return function(f"function {name}(x: float32) -> (y: float32)\na = MatMul(x, x)\nreturn y = a:product:0")


def sine(name):
    return function(f"function {name}(x: float32) -> (y: float32)\na = Sin(x)\nreturn y = a:y:0")


@pytest.mark.parametrize(
    ("functions", "answer"),
    [
        ([product("f")], True),
        ([sine("f")], False),
        ([calling("f", "g"), product("g")], True),
        ([calling("f", "g"), sine("g"), product("h")], False),
        ([calling("f", "g"), calling("g", "f")], False),
        ([calling("f", "g"), calling("g", "h"), calling("h", "f"), product("i")], False),
        ([calling("f", "unknown")], True),
        ([calling("f", "g"), calling("g", "unknown")], True),
        ([], True),
    ],
)
def test_a_call_reaches_what_the_functions_behind_it_run(functions, answer):
    caller = calling("main", "f").node_def[0]
    assert Callees({f.signature.name: f for f in functions}).reaches(caller, PRODUCTS) is answer


def test_a_chain_of_calls_is_walked_once_not_once_for_each_of_its_functions(monkeypatch):
    asked = []
    monkeypatch.setattr(
        calls, "referenced", lambda node, original=calls.referenced: asked.append(node) or original(node)
    )
    count = 150
    proto = graph("x = Placeholder()\nc = PartitionedCall(x) Tin=[float32] Tout=[float32] f=f0")
    proto.library.function.extend(calling(f"f{i}", f"f{i + 1}") for i in range(count))
    proto.library.function.append(product(f"f{count}"))
    result = amp_tf.rewrite(proto, amp_tf.AmpConfig(precision="bfloat16"), hardware=Hardware(cpu_has_bf16=True))
    assert result.report.converted == 1
    assert len(asked) < 5 * count
