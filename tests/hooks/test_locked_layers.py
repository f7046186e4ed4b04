"""A lock file, made from one model, keeps the same layer of a changed model in float32: real training steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest

import amp_tf
from amp_tf.graph.names import is_within
from amp_tf.hooks import summary
from amp_tf.lock import Decision, Lock
from amp_tf.reporting import process

PRODUCTS = ("MatMul", "_FusedMatMul")
FIRST = (("in", 24), ("a", 16), ("b", 16), ("c", 16), ("out", 1))


def trained(layers: Sequence[tuple[str | None, int]], lock: Path, *, batch: int = 8) -> amp_tf.RewriteReport:
    """The report of a training step of dense layers, whose names are Keras' where none is given."""
    keras.utils.clear_session()
    process.reset()
    with amp_tf.enable(precision="bfloat16", target="cpu", lock=lock):
        stack = [keras.layers.Dense(width, activation="tanh", name=name) for name, width in layers]
        model = keras.Sequential([keras.Input((12,)), *stack])
        model.compile("sgd", "mse")
        model.train_on_batch(np.ones((batch, 12), np.float32), np.ones((batch, 1), np.float32))
        return amp_tf.report()


def step_of(report: amp_tf.RewriteReport):
    return max(report.graphs, key=lambda graph: graph.total)


def lock_for(path: str, report: amp_tf.RewriteReport, folder: Path) -> Path:
    layer = next(layer for layer in step_of(report).painting.obstacles.locked.layers if path in layer.path)
    lock = folder / f"{path.strip(chr(47))}.lock"
    lock.write_text(Lock((Decision(layer),)).to_text())
    return lock


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("locks")


@pytest.fixture(scope="module")
def empty(folder: Path) -> Path:
    lock = folder / "empty.lock"
    lock.write_text(Lock().to_text())
    return lock


@pytest.fixture(scope="module")
def lock(folder: Path, empty: Path) -> Path:
    """Of the second of three layers that are alike."""
    return lock_for("/b", trained(FIRST, empty), folder)


def kept(report: amp_tf.RewriteReport) -> set[str]:
    """The layers whose products are in float32."""
    step = step_of(report)
    products = [node for node in step.nodes if node.op in PRODUCTS]
    assert len(products) >= 9  # forward and two of the gradient, but for the first
    paths = [layer.path for layer in step.painting.obstacles.locked.layers if "MatMul" in layer.structure]
    of = {path: [node for node in products if is_within(node.name, path)] for path in paths}
    for nodes in of.values():
        assert len({node.precision for node in nodes}) == 1, nodes
    return {path.partition("/")[2] for path, nodes in of.items() if not nodes[0].precision.is_f16}


def name_of(report: amp_tf.RewriteReport, place: int) -> str:
    """The name that Keras gives the layer in a place, in the graph."""
    paths = [layer.path for layer in step_of(report).painting.obstacles.locked.layers if "MatMul" in layer.structure]
    return paths[place].partition("/")[2]


def test_the_layer_is_kept_with_its_gradients_in_any_batch(lock: Path) -> None:
    for batch in (8, 3):
        report = trained(FIRST, lock, batch=batch)
        assert kept(report) == {name_of(report, 2)}
        assert report.lock_changes == ""
        assert "lock file" not in summary.line()


def test_layers_that_keras_numbers_are_found_after_one_was_added(folder: Path, empty: Path) -> None:
    """The names of all layers behind the new one are those of their neighbours before."""
    unnamed = tuple((None, width) for _, width in (("", 24), ("", 20), ("", 16), ("", 1)))
    before = trained(unnamed, empty)
    lock = lock_for(name_of(before, 1), before, folder)
    report = trained(((None, 28), *unnamed[:1], *unnamed[1:]), lock)
    assert kept(report) == {name_of(report, 2)}
    assert report.lock_changes == f"{step_path(before, 1)} is {step_path(report, 2)} now"


def step_path(report: amp_tf.RewriteReport, place: int) -> str:
    return [layer.path for layer in step_of(report).painting.obstacles.locked.layers if "MatMul" in layer.structure][
        place
    ]


def test_a_lock_that_is_written_by_hand_may_name_a_layer_by_its_path_in_keras(folder: Path) -> None:
    """The scope of the layer b is sequential_1/b_1."""
    lock = folder / "hand.lock"
    lock.write_text('{"schema": "amp_tf.lock", "schema_version": 1, "float32": [{"layer": "sequential/b"}]}')
    report = trained(FIRST, lock)
    assert kept(report) == {name_of(report, 2)}
    assert report.lock_changes == ""


def test_of_layers_that_are_alike_one_more_is_told(lock: Path) -> None:
    report = trained((*FIRST[:4], ("d", 16), FIRST[4]), lock)
    assert len(kept(report)) == 1
    assert "is one of more or fewer layers that are alike" in report.lock_changes


def test_what_the_lock_was_made_for_is_told(folder: Path) -> None:
    lock = folder / "other.lock"
    lock.write_text(Lock(made={"precision": "float16", "device": "CPU"}).to_text())
    with amp_tf.enable(precision="bfloat16", target="cpu", lock=lock):
        process.reset()
        trained(FIRST, lock)
        assert "; lock file: made for precision float16, not bfloat16" in summary.line()
