from __future__ import annotations

import pytest

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.paint import NO_CHANGE, Change

HARDWARE = {"cpu": Hardware(cpu_has_bf16=True), "gpu": Hardware(gpu_capabilities=((8, 0),))}
LEVELS = ("DEFAULT", "TREAT_INFER_AS_DENY", "TENSOR_CORES_ONLY")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", HARDWARE)
@pytest.mark.parametrize(("op", "name"), [("Exp", "infer"), ("Exp", "allow"), ("MatMul", "deny"), ("Cumsum", "infer")])
def test_lists_are_those_of_the_variable(op, name, device, level):
    config = amp_tf.AmpConfig(level=level)
    changed = Change(op_lists=((op, name),)).lists(resolve_target(config, HARDWARE[device]), config)
    asked = amp_tf.AmpConfig(level=level, **{f"{name}_add": (op,)})
    expected = resolve_target(asked, HARDWARE[device]).target.lists.list_of
    assert dict(changed.target.lists.list_of) == dict(expected)


def test_two_changes_together_are_both():
    first = Change(op_lists=(("Exp", "infer"),), patterns=frozenset({"a"}), rules=frozenset({"results"}))
    second = Change(op_lists=(("Exp", "allow"), ("Pow", "infer")), nodes=frozenset({"n"}), shapes=True)
    both = first.plus(second)
    assert dict(both.op_lists) == {"Exp": "allow", "Pow": "infer"}
    assert (both.patterns, both.nodes, both.rules, both.shapes) == ({"a"}, {"n"}, {"results"}, True)
    assert NO_CHANGE.plus(first) == first
    assert not NO_CHANGE
    assert first
