"""Layers of a lock file are found in a graph: as they were, renamed, moved, changed, or not at all."""

from __future__ import annotations

import pytest

from amp_tf.graph.sizes import KnownShapes
from amp_tf.lock import Decision, Layer, Lock
from amp_tf.painting.locked import Certainty, Match, describe, find_layers, find_locked, surest
from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted
from tests.small_graphs import graph

SHAPES = {"w1": [(4, 8)], "w2": [(8, 8)], "w3": [(8, 8)]}


def layers_text(*names: str) -> str:
    """Dense layers one after the other, each with a gradient."""
    lines = ["x = Placeholder()"]
    for number, name in enumerate(names, 1):
        before = f"{names[number - 2]}/Tanh" if number > 1 else "x"
        lines += [
            f"v{number} = VarHandleOp()",
            f"w{number} = ReadVariableOp(v{number})",
            f"{name}/MatMul = MatMul({before}, w{number})",
            f"{name}/Tanh = Tanh({name}/MatMul)",
        ]
    lines += [f"gradient_tape/{name}/MatMul/MatMul = MatMul({names[-1]}/Tanh, w{len(names)})" for name in names]
    return "\n".join(lines)


def view_of(*names: str):
    return painted(layers_text(*names), precision="bfloat16", target="cpu").painting.view


THREE = ("m/dense", "m/dense_1", "m/dense_2")


def lock_of(*decisions: Decision) -> Lock:
    return Lock(decisions)


def made_layers(*names: str, shapes=SHAPES) -> list[Layer]:
    return find_layers(view_of(*names), KnownShapes(shapes))


def test_layers_have_their_structure_weights_and_place_among_those_that_are_alike():
    assert made_layers(*THREE) == [
        Layer("m/dense", "MatMul Tanh", ("4x8",), 1, 1),
        Layer("m/dense_1", "MatMul Tanh", ("8x8",), 1, 2),
        Layer("m/dense_2", "MatMul Tanh", ("8x8",), 2, 2),
    ]


def test_weights_of_unknown_shape_are_left_out():
    assert made_layers(*THREE, shapes={"w1": [(-1, 8)]})[0] == Layer("m/dense", "MatMul Tanh", (), 1, 3)


def test_what_tensorflow_fused_has_the_same_structure():
    apart = "x = Placeholder()\na/p = MatMul(x, x)\nb = Placeholder()\na/s = BiasAdd(a/p, b)\na/r = Tanh(a/s)"
    fused = "x = Placeholder()\nb = Placeholder()\na/r = _FusedMatMul(x, x, b) num_args=1 fused_ops=['BiasAdd', 'Tanh']"
    of = [find_layers(painted(text, precision="bfloat16").painting.view, None) for text in (apart, fused)]
    assert of[0] == of[1] == [Layer("a", "MatMul Tanh sum")]


def test_a_layer_stays_in_float32_with_its_gradient(tmp_path):
    path = tmp_path / "amp.lock"
    path.write_text(lock_of(Decision(made_layers(*THREE)[1])).to_text())
    free = painted(layers_text(*THREE), precision="bfloat16", target="cpu")
    kept = painted(layers_text(*THREE), precision="bfloat16", target="cpu", lock=str(path))
    gone = set(free.f16.split()) - set(kept.f16.split())
    assert gone == {"m/dense_1/MatMul", "m/dense_1/Tanh", "gradient_tape/m/dense_1/MatMul/MatMul"}
    assert kept.rule("m/dense_1/MatMul") is Rule.KEPT_BY_LOCK


MIDDLE = Layer("m/dense_1", "MatMul Tanh", ("8x8",), 1, 2)
#: What the lock says, the layers now, what is found for it, and how many nodes stay in float32.
FOUND = {
    "as it was": (Decision(MIDDLE), THREE, Match("m/dense_1", Certainty.SAME, "m/dense_1"), 3),
    "renamed, by structure and place": (
        Decision(MIDDLE),
        ("m/dense", "m/features", "m/dense_2"),
        Match("m/dense_1", Certainty.MOVED, "m/features"),
        3,
    ),
    "in another model": (Decision(MIDDLE), ("n/a", "n/b", "n/c"), Match("m/dense_1", Certainty.MOVED, "n/b"), 3),
    "one of fewer": (
        Decision(MIDDLE),
        ("m/dense", "m/dense_1"),
        Match("m/dense_1", Certainty.OTHER_COUNT, "m/dense_1"),
        3,
    ),
    "computes something else, by its name": (
        Decision(Layer("m/dense_1", "Conv2D Tanh", ("3x3x8x8",))),
        THREE,
        Match("m/dense_1", Certainty.CHANGED, "m/dense_1"),
        3,
    ),
    "gone, so that the scope around it stays": (
        Decision(Layer("m/block/attention", "Einsum Softmax")),
        ("m/block/query", "m/dense", "m/dense_1"),
        Match("m/block/attention", Certainty.AROUND, "m/block"),
        3,
    ),
    "gone, and not the whole model stays": (
        Decision(Layer("m/attention", "Einsum Softmax")),
        THREE,
        Match("m/attention", Certainty.NOT_FOUND, ""),
        0,
    ),
    "a node": (
        Decision(Layer("m/dense_1"), "m/dense_1/MatMul"),
        THREE,
        Match("m/dense_1/MatMul", Certainty.SAME, "m/dense_1/MatMul", is_node=True),
        1,
    ),
    "a node of a renamed layer": (
        Decision(MIDDLE, "m/dense_1/Tanh"),
        ("m/dense", "m/features", "m/dense_2"),
        Match("m/dense_1/Tanh", Certainty.MOVED, "m/features/Tanh", is_node=True),
        1,
    ),
    "a node that is gone, so that its layer stays": (
        Decision(MIDDLE, "m/dense_1/Exp"),
        THREE,
        Match("m/dense_1/Exp", Certainty.AROUND, "m/dense_1"),
        3,
    ),
}


@pytest.mark.parametrize(("decision", "now", "match", "count"), FOUND.values(), ids=FOUND)
def test_a_layer_or_node_of_a_lock_is_found(decision, now, match, count):
    assert made_layers(*THREE)[1] == MIDDLE
    view = view_of(*now)
    found = find_locked(lock_of(decision), view, KnownShapes(SHAPES))
    assert found.matches == (match,)
    names = [view.names[node] for node in found.nodes]
    assert len(names) == count
    assert all(match.found in name for name in names)


def test_of_several_graphs_the_surest_match_counts_and_what_is_not_the_same_is_told():
    matches = [
        Match("a", Certainty.NOT_FOUND),
        Match("a", Certainty.MOVED, "b"),
        Match("c", Certainty.SAME, "c"),
        Match("c", Certainty.NOT_FOUND),
    ]
    assert describe(surest(matches).values()) == "a is b now"


def test_the_report_says_what_was_not_found(tmp_path):
    import amp_tf

    path = tmp_path / "amp.lock"
    path.write_text(lock_of(Decision(Layer("gone", "Einsum"))).to_text())
    config = amp_tf.AmpConfig(precision="bfloat16", lock=path)
    report = amp_tf.rewrite(graph(layers_text(*THREE)), config).report
    assert report.lock_changes == "gone is gone, and nothing stays in float32 for it"


def test_of_many_decisions_a_few_are_told_and_how_many_more():
    words = describe(Match(f"m/{number:05}", Certainty.NOT_FOUND) for number in range(20_000))
    assert words.startswith("m/00000 is gone, and nothing stays in float32 for it; m/00001 is gone")
    assert words.endswith("; and 19,990 more")
    assert len(words) < 1000
