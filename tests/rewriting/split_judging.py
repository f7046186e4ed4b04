"""Splits what TensorFlow's remapper fuses and compares it with float32: a program, as oneDNN is chosen per process.

Prints JSON: for each kind and precision the fused node before, the products after, how far off the result is (of the
largest value of float32's), also after the remapper has run once more, and whether a second rewrite changes anything.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import amp_tf
from amp_tf.oplists.fusions import SPLIT_PRODUCTS
from amp_tf.oplists.hardware import Hardware
from tests.rewriting.fused_graphs import KINDS, made, remapped
from tests.rewriting.graph_shapes import GraphShapes
from tests.rewriting.rewritten import feeds, run

PLAIN_CPU = Hardware()  # neither bf16 nor avx512
NUMBERS = {"float16": 19, "bfloat16": 14}
PRODUCTS = {step.op for step in SPLIT_PRODUCTS.values()}


def judge(kind: str, precision: str) -> dict[str, object] | None:
    """What becomes of a kind; nothing where this TensorFlow does not fuse it."""
    given = made(KINDS[kind])
    fused = remapped(given)
    whole = [node for node in fused.node if node.op in SPLIT_PRODUCTS]
    if not whole:
        return None
    config = amp_tf.AmpConfig(precision=precision)
    options = {"hardware": PLAIN_CPU, "preserve": ["fetch"], "shapes": GraphShapes(given)}  # the hooks know them too
    result = amp_tf.rewrite(fused, config, **options)
    again = amp_tf.rewrite(result.graph, config, **options)
    values = feeds(given)
    exact = run(given, values)
    iterated = remapped(result.graph)
    unfused = amp_tf.rewrite(given, config, **options).graph
    found = {name: run(graph, values) for name, graph in (("split", result.graph), ("iterated", iterated))}
    scale = np.abs(exact).max()
    return {
        "fused": [whole[0].op, *(name.decode() for name in whole[0].attr["fused_ops"].list.s)],
        "left": [node.name for node in result.graph.node if node.op in SPLIT_PRODUCTS],
        "types": [node.attr["T"].type == NUMBERS[precision] for node in result.graph.node if node.op in PRODUCTS],
        "kept": whole[0].name in {node.name for node in result.graph.node},
        "again": again.changed,
        "as unfused": bool((found["split"] == run(unfused, values)).all()),
        **{name: float(np.abs(value - exact).max() / scale) for name, value in found.items()},
    }


if __name__ == "__main__":
    print(json.dumps({kind: {name: judge(kind, name) for name in NUMBERS} for kind in KINDS}))
    sys.stdout.flush()
