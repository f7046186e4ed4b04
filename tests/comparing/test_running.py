"""How a comparison runs: calls, parts, copies of variables, and which nodes it looks at."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.graph.names import find_followers, pattern_for
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.rewriting.pipeline import rewrite
from amp_tf.tools.comparing import joining, nodes
from amp_tf.tools.comparing.calls import Calls
from amp_tf.tools.comparing.flattening import FlatStep
from amp_tf.tools.comparing.functions import elements
from amp_tf.tools.comparing.joining import AMP, FLOAT32, JointGraph, RunnableStep
from amp_tf.tools.comparing.nodes import nodes_run_once
from amp_tf.tools.comparing.pipeline import compare
from amp_tf.tools.comparing.steps import flat_step
from amp_tf.tools.progress import silent
from tests.rewriting import rewritten
from tests.rewriting.test_folding import BLOCK
from tests.rewriting.test_lifting import DENSE
from tests.small_graphs import graph


def test_nodes_in_parts_are_nodes_all_at_once(monkeypatch):
    weight = tf.Variable(np.random.default_rng(1).normal(size=(8, 8)).astype("float32"))

    def layers(x):
        for _ in range(3):
            x = tf.tanh(x @ weight)
        return tf.reduce_sum(x)

    flat = flat_step(layers, [np.random.default_rng(2).normal(size=(4, 8)).astype("float32")], 1)
    config = AmpConfig(precision="bfloat16", target="cpu")
    converted = rewrite(
        flat.graph, config, preserve=flat.ends, hardware=Hardware(cpu_has_bf16=True)
    ).graph

    def looked():
        return nodes.measure_nodes(flat, converted, Precision.BFLOAT16, 0, 1.0, silent)

    whole = looked()
    assert len(whole) > 4
    assert any(node.accumulated > 0 for node in whole)
    monkeypatch.setattr(nodes, "_AT_ONCE", 2)
    assert looked() == whole


@pytest.mark.parametrize("is_on", [True, False])
def test_tf32_is_off_meanwhile_and_then_as_it_was(is_on):
    experimental = tf.config.experimental
    before = experimental.tensor_float_32_execution_enabled()
    seen = []

    def progress(text):
        seen.append(experimental.tensor_float_32_execution_enabled())

    config = AmpConfig(precision="bfloat16", target="cpu")
    batches = [np.ones((4, 8), np.float32)]
    settings = {"hardware": Hardware(cpu_has_bf16=True), "progress": progress}
    try:
        experimental.enable_tensor_float_32_execution(is_on)
        amp_tf.compare(
            lambda x: tf.tanh(x @ tf.ones((8, 8))) @ tf.ones((8, 8)), batches, config, **settings
        )
        assert experimental.tensor_float_32_execution_enabled() is is_on
        with pytest.raises(amp_tf.AmpError):
            amp_tf.compare(lambda x: x, [], config, **settings)
        assert experimental.tensor_float_32_execution_enabled() is is_on
    finally:
        experimental.enable_tensor_float_32_execution(before)
    assert len(seen) > 2
    assert not any(seen)


X = np.full((2, 3), 2.0, "float32")


@pytest.fixture
def step():
    """A product with one variable, which is added up in another."""
    weight = tf.Variable(tf.ones((3, 3)))
    total = tf.Variable(1.0)

    def product(x):
        y = x @ weight
        total.assign_add(tf.reduce_sum(y))
        return y

    return flat_step(product, [X], 1)


def variables(joint, flat):
    """The tensors that read each variable, by its size."""
    with joint.graph.as_default():
        return {
            kept.value.size: tf.raw_ops.ReadVariableOp(
                resource=joint.tensor(FLOAT32, node), dtype=tf.float32
            )
            for node, kept in flat.variables.items()
        }


def test_what_is_fetched_alone_neither_fills_nor_runs_the_rest_of_the_step(step):
    joint = JointGraph(step, {FLOAT32: step.graph})
    read = variables(joint, step)
    (product,) = (op.outputs[0] for op in joint.graph.get_operations() if op.type == "MatMul")
    np.testing.assert_array_equal(joint.fetch(product, 0, 1.0, is_alone=True), X @ np.ones((3, 3)))
    assert joint.read(read[9]).sum() == 9
    with pytest.raises(tf.errors.FailedPreconditionError):
        joint.read(read[1])
    joint.fetch(product, 0, 1.0)
    assert joint.read(read[1]) == 1 + X.sum() * 3
    joint.close()


@pytest.mark.parametrize("is_disturbed", [False, True])
def test_a_form_that_gave_its_memory_back_runs_again_as_before(step, is_disturbed):
    form = RunnableStep(step, step.graph)
    before = form.run(0, 1.0, is_disturbed=is_disturbed)
    form.close()
    form.close()
    for first, second in zip(before, form.run(0, 1.0, is_disturbed=is_disturbed), strict=True):
        np.testing.assert_array_equal(first, second)
    form.close()


def test_disturbed_numbers_differ_by_a_last_bit_and_whole_ones_not_at_all():
    value = np.random.default_rng(0).normal(size=(40, 50)).astype("float32")
    value[0] = 3
    changed = joining.disturbed(value)
    steps = (changed.astype("float64") - value) / np.spacing(np.abs(value))
    assert changed.dtype == np.float32
    assert not steps[0].any()
    assert set(np.abs(steps[1:]).ravel()) == {
        1,
        2,
    }  # one or two of the last bit, by which side of a power of two
    assert 0.4 < (steps[1:] > 0).mean() < 0.6
    np.testing.assert_array_equal(joining.disturbed(np.array([1, 2])), [1, 2])
    assert joining.disturbed(np.array(0.1, "float32")).shape == ()


def test_a_comparison_holds_what_variables_held_as_it_began():
    total = tf.Variable(tf.ones((100, 100)))

    def add(x):
        return total.assign_add(x) + x

    flat = flat_step(add, [np.ones((100, 100), "float32")], 1)
    form = RunnableStep(flat, flat.graph)
    first = form.run(0, 1.0)
    second = form.run(0, 1.0)
    np.testing.assert_array_equal(first[0], second[0])
    total.assign_add(tf.ones((100, 100)))  # the variable has other memory from now on
    np.testing.assert_array_equal(form.run(0, 1.0)[0], first[0])
    form.close()


BEHIND = """
    w3 = Placeholder() shape=[3, 3, 16, 64]
    fetch = Conv2D(act, w3) padding='SAME' strides=[1, 1, 1, 1]
"""


def _probes(proto, rewritten):
    """The names of the nodes that compute the same in both versions."""
    feeds = tuple(node.name for node in proto.node if node.op == "Placeholder")
    step = FlatStep(proto, (), feeds, {}, {}, ("fetch:0",), (), (), is_compiled=False)
    joint = JointGraph(step, {FLOAT32: proto, AMP: rewritten})
    versions = nodes.Versions(step, rewritten)
    found = set()
    for node in proto.node:
        if versions.has_both(node.name) and node.op != "Placeholder":
            exact, op = (
                joint.graph.get_operation_by_name(f"{side}/{node.name}") for side in (FLOAT32, AMP)
            )
            if versions.are_alike(exact, op):
                found.add(node.name)
    return found


@pytest.mark.parametrize(
    ("text", "moved", "others"),
    [
        (DENSE, {"back"}, {"product", "biased", "act", "sum"}),
        (
            BLOCK.replace("    fetch = Identity(act)\n", BEHIND),
            {"conv", "scaled", "shifted"},
            {"act"},
        ),
    ],
    ids=["lifting", "folding"],
)
def test_a_node_that_gives_other_values_since_it_was_moved_is_not_looked_at(text, moved, others):
    """A reshaping comes after its bias then; a convolution gives scaled values, of which a sum
    became a BiasAdd.
    """
    proto = graph(text)
    assert _probes(proto, proto) >= moved | others
    found = _probes(proto, rewritten.rewrite(proto).graph)
    assert found >= others
    assert not found & moved


def _flat(function):
    return flat_step(function, [np.ones((2, 2), np.float32)], 1).graph


def test_nodes_of_loops_and_branches_are_left_out():
    def program(x):
        x = tf.exp(x, name="before")
        for _ in tf.range(2):
            if tf.reduce_sum(x) > 0:
                x = tf.sin(x, name="inner")
        x = tf.cond(
            tf.reduce_sum(x, name="between") > 0, lambda: tf.cos(x, name="branch"), lambda: x
        )
        return tf.tanh(x, name="after")

    graph = _flat(program)
    names = nodes_run_once(graph)
    assert {"before", "between", "after"} <= set(names)
    assert names.index("before") < names.index("between") < names.index("after")
    inside = [node.name for node in graph.node if node.name.endswith(("/inner", "/branch"))]
    assert len(inside) == 2
    assert not {*inside} & {*names}
    assert not any(node.op == "Switch" and node.name in names for node in graph.node)


def test_a_pattern_names_a_lone_product_and_nothing_that_is_not_fused_with_it():
    def program(x):
        large = tf.abs(tf.matmul(x, x, name="MatMul"), name="Abs")
        with tf.name_scope("dense"):
            return tf.sqrt(tf.matmul(large, x, name="MatMul"), name="Sqrt")

    followers = find_followers(_flat(program))
    assert pattern_for("MatMul", followers) == "node:MatMul"
    assert pattern_for("dense/MatMul", followers) == "(^|/)dense/MatMul$"


CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
VALUES = np.random.default_rng(0).normal(size=(16, 16)).astype("float32")


def test_a_variable_among_the_arguments_stays_a_variable():
    weight = tf.Variable(tf.ones((16, 16)))
    other = tf.Variable(tf.ones((16, 16)))

    def step(x, w):
        w.assign_sub(0.1 * tf.matmul(x, x))
        return tf.reduce_sum(tf.matmul(x, w))

    calls = Calls("step", step, None, 3)
    calls.keep(VALUES, weight)
    calls.keep(VALUES, other)
    calls.keep(tf.constant(VALUES), weight)
    calls.keep(VALUES, weight)
    assert len(calls.kept) == 3  # as many as are wanted
    flat = flat_step(calls, calls.kept, 3)
    assert len(flat.batches) == 2  # the one with another variable is another step
    found = compare(calls, calls.kept, CONFIG)
    assert found.name == "step"
    assert [(output.kind, output.name) for output in found.outputs if output.kind == "update"] == [
        ("update", "Variable")
    ]
    np.testing.assert_array_equal(weight, np.ones((16, 16)))


def test_an_iterator_that_is_given_twice_gives_an_element_to_both():
    iterator = iter(tf.data.Dataset.range(6))
    calls = elements(((iterator, 7), {"other": iterator}), 4)
    assert [(int(one), seven, int(more["other"])) for (one, seven), more in calls] == [
        (number, 7, number) for number in range(4)
    ]
    assert elements(((tf.data.Dataset.range(0), iterator), {}), 4) == []
