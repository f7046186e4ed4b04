"""A lock file, made from one model, keeps the same layer of a changed model in float32: real training steps."""

import keras
import numpy as np
import pytest

import amp_tf
from amp_tf.graph.names import is_within
from amp_tf.hooks import summary
from amp_tf.lock import Decision, Lock
from amp_tf.reporting import reports

PRODUCTS = ("MatMul", "_FusedMatMul")
FIRST = (("in", 24), ("a", 16), ("b", 16), ("c", 16), ("out", 1))


def trained(layers, lock, *, batch=8):
    """The report of a training step of dense layers, whose names are Keras' where none is given."""
    keras.utils.clear_session()
    reports.reset()
    with amp_tf.enable(precision="bfloat16", target="cpu", lock=lock):
        stack = [keras.layers.Dense(width, activation="tanh", name=name) for name, width in layers]
        model = keras.Sequential([keras.Input((12,)), *stack])
        model.compile("sgd", "mse")
        model.train_on_batch(np.ones((batch, 12), np.float32), np.ones((batch, 1), np.float32))
        return amp_tf.report()


def step_of(report):
    return max(report.graphs, key=lambda graph: graph.total)


def lock_for(path, report, folder):
    layer = next(layer for layer in step_of(report).painting.obstacles.locked.layers if path in layer.path)
    lock = folder / f"{path.replace('/', '_')}.lock"
    lock.write_text(Lock((Decision(layer),)).to_text())
    return lock


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("locks")


@pytest.fixture(scope="module")
def empty(folder):
    lock = folder / "empty.lock"
    lock.write_text(Lock().to_text())
    return lock


@pytest.fixture(scope="module")
def lock(folder, empty):
    """Of the second of three layers that are alike."""
    return lock_for("/b", trained(FIRST, empty), folder)


def paths(report):
    """The layers with products, in their order, as the graph names them."""
    return [layer.path for layer in step_of(report).painting.obstacles.locked.layers if "MatMul" in layer.structure]


def kept(report):
    """Those whose products are in float32."""
    products = [node for node in step_of(report).nodes if node.op in PRODUCTS]
    assert len(products) >= 9  # forward and two of the gradient, but for the first
    of = {path: {node.precision for node in products if is_within(node.name, path)} for path in paths(report)}
    assert {len(precisions) for precisions in of.values()} == {1}
    return [path for path, (precision,) in of.items() if not precision.is_f16]


def test_the_layer_is_kept_with_its_gradients_in_any_batch(lock):
    for batch in (8, 3):
        report = trained(FIRST, lock, batch=batch)
        assert kept(report) == [paths(report)[2]]
        assert report.lock_changes == ""
        assert "lock file" not in summary.line()


def test_layers_that_keras_numbers_are_found_after_one_was_added(folder, empty):
    """The names of all layers behind the new one are those of their neighbours before."""
    unnamed = tuple((None, width) for width in (24, 20, 16, 1))
    before = trained(unnamed, empty)
    lock = lock_for(paths(before)[1], before, folder)
    report = trained(((None, 28), *unnamed), lock)
    assert kept(report) == [paths(report)[2]]
    assert report.lock_changes == f"{paths(before)[1]} is {paths(report)[2]} now"


def test_a_lock_that_is_written_by_hand_may_name_a_layer_by_its_path_in_keras(folder):
    """The scope of the layer b is sequential_1/b_1."""
    lock = folder / "hand.lock"
    lock.write_text('{"schema": "amp_tf.lock", "schema_version": 1, "float32": [{"layer": "sequential/b"}]}')
    report = trained(FIRST, lock)
    assert kept(report) == [paths(report)[2]]
    assert report.lock_changes == ""


def test_of_layers_that_are_alike_one_more_is_told(lock):
    report = trained((*FIRST[:4], ("d", 16), FIRST[4]), lock)
    assert len(kept(report)) == 1
    assert "is one of more or fewer layers that are alike" in report.lock_changes


def test_what_the_lock_was_made_for_is_told(folder):
    lock = folder / "other.lock"
    lock.write_text(Lock(made={"precision": "float16", "device": "CPU"}).to_text())
    with amp_tf.enable(precision="bfloat16", target="cpu", lock=lock):
        reports.reset()
        trained(FIRST, lock)
        assert "; lock file: made for precision float16, not bfloat16" in summary.line()
