"""How a comparison runs: calls, parts, copies of variables, and which nodes it looks at."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.tools.comparing import joining, nodes
from amp_tf.tools.comparing.calls import Calls
from amp_tf.tools.comparing.flattening import FlatStep
from amp_tf.tools.comparing.functions import elements
from amp_tf.tools.comparing.joining import AMP, FLOAT32, JointGraph, RunnableStep
from amp_tf.tools.comparing.pipeline import compare
from amp_tf.tools.comparing.steps import flat_step
from tests.comparing.planted import normal
from tests.rewriting import rewritten
from tests.rewriting.test_folding import BLOCK
from tests.rewriting.test_lifting import DENSE
from tests.small_graphs import graph

CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


@pytest.fixture
def tf32():
    """Returns whether TF32 is on; it is put back."""
    experimental = tf.config.experimental
    before = experimental.tensor_float_32_execution_enabled()
    yield experimental.tensor_float_32_execution_enabled
    experimental.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize("is_on", [True, False])
def test_tf32_is_off_meanwhile_and_then_as_it_was(is_on, tf32):
    seen = []
    settings = {
        "hardware": Hardware(cpu_has_bf16=True),
        "progress": lambda text: seen.append(tf32()),
    }

    def product(x):
        return tf.tanh(x @ tf.ones((8, 8))) @ tf.ones((8, 8))

    tf.config.experimental.enable_tensor_float_32_execution(is_on)
    amp_tf.compare(product, [np.ones((4, 8), np.float32)], CONFIG, **settings)
    assert tf32() is is_on
    with pytest.raises(amp_tf.AmpError):
        amp_tf.compare(product, [], CONFIG, **settings)
    assert tf32() is is_on
    assert len(seen) > 2
    assert not any(seen)


def test_disturbed_numbers_differ_by_a_last_bit_and_whole_ones_not_at_all():
    value = normal(0, 40, 50)
    value[0] = 3
    changed = joining.disturbed(value)
    assert changed.dtype == np.float32
    bits = (changed.astype("float64") - value) / np.spacing(np.abs(value))
    assert not bits[0].any()
    assert set(np.abs(bits[1:]).ravel()) == {1, 2}  # by which side of a power of two
    assert 0.4 < (bits[1:] > 0).mean() < 0.6
    np.testing.assert_array_equal(joining.disturbed(np.array([1, 2])), [1, 2])
    assert joining.disturbed(np.array(0.1, "float32")).shape == ()


def test_a_comparison_holds_what_variables_held_as_it_began():
    total = tf.Variable(tf.ones((100, 100)))

    def add(x):
        return total.assign_add(x) + x

    flat = flat_step(add, [np.ones((100, 100), "float32")], 1)
    form = RunnableStep(flat, flat.graph)
    first = form.run(0, 1.0)[0]
    np.testing.assert_array_equal(form.run(0, 1.0)[0], first)
    total.assign_add(tf.ones((100, 100)))  # the variable has other memory from now on
    np.testing.assert_array_equal(form.run(0, 1.0)[0], first)
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
        if node.op == "Placeholder" or node.name not in versions.common:
            continue
        exact = joint.graph.get_operation_by_name(f"{FLOAT32}/{node.name}")
        if versions.are_alike(exact, joint.graph.get_operation_by_name(f"{AMP}/{node.name}")):
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


VALUES = normal(0, 16, 16)


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
