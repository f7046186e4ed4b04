"""One graph's journey: the stages of a rewrite of six nodes, for CONTRIBUTING.md.

The calls are those of ``_rewrite_nodes`` and ``decide`` in ``amp_tf/rewriting/pipeline.py``, with
their results printed between them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


def contents() -> str:
    """All stages, each with the call that makes it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return "\n".join(["```", *_stages(), "```"])


def make_graph() -> Any:
    """A convolution that is scaled, as a folded normalization is, and a softmax behind it."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        x, w, s = (
            tf.compat.v1.placeholder(tf.float32, shape, name=name)
            for name, shape in (("x", (8, 64, 64, 32)), ("w", (3, 3, 32, 32)), ("s", (32,)))
        )
        conv = tf.nn.conv2d(x, w, 1, "SAME", name="conv")
        tf.nn.softmax(tf.multiply(conv, s, name="scaled"), name="out")
    return graph.as_graph_def(add_shapes=True)


def _stages() -> Iterator[str]:
    from amp_tf.config import AmpConfig
    from amp_tf.graph import editor, verify
    from amp_tf.graph.reader import read_graph
    from amp_tf.oplists.hardware import Hardware
    from amp_tf.oplists.targets import resolve_target
    from amp_tf.rewriting.form import Job
    from amp_tf.rewriting.pipeline import CORRECTIONS, PREPARATIONS, run_passes
    from amp_tf.rewriting.planning import plan_edits

    graph = make_graph()
    resolution = resolve_target(AmpConfig(), Hardware(cpu_has_bf16=True))
    job = Job.of(AmpConfig(), resolution, graph.library, preserve=frozenset({"out"}))

    call = "read:    view = read_graph(graph, job.templates)"
    yield f"{call}            nodes, units, edges between units"
    view = read_graph(graph, job.templates)
    for node, line in enumerate(short(graph.node)):
        units = " ".join(f"{unit}:{view.slot(node, unit)}" for unit in view.units(node))
        yield f"    {line:<34} unit {units}"
    edges = zip(view.edges.src_unit.tolist(), view.edges.dst_unit.tolist(), strict=True)
    yield f"    edges {' '.join(f'{source}→{reader}' for source, reader in edges)}"

    call = "prepare: form = run_passes(job.form(view, None), PREPARATIONS)"
    yield f"{call}  the multiplication moves to the filter"
    form = run_passes(job.form(view, None), PREPARATIONS)
    yield from _edits(form.edits, form.view)

    call = "paint:   painting = run_passes(form, CORRECTIONS).painting"
    yield f"{call}  no loop, and nothing to split"
    painting = run_passes(form, CORRECTIONS).painting
    converted = painting.converted_nodes()
    for node, name in enumerate(form.view.names):
        precision = "bfloat16" if node in converted else "float32"
        yield f"    {name:<6} {precision:<8} {painting.reason(node)}"

    call = "plan:    casts = plan_edits(painting)"
    yield f"{call}                       types, and casts where they meet"
    casts = plan_edits(painting)
    yield from _edits(casts, form.view)

    yield "apply:   result = apply_to_graph(graph, view.names, form.edits.then(casts))"
    edits = form.edits.then(casts)
    result = editor.apply_to_graph(graph, view.names, edits)
    yield from (f"    {line}" for line in short(result.node))

    yield "verify:  find_violation(view, read_graph(result, …), form.edits, form.view)"
    after = read_graph(result, job.templates)
    yield f"    {verify.find_violation(view, after, form.edits, form.view) or 'nothing is wrong'}"
    yield "    and if the editor had forgotten the fold:"
    forgotten = editor.apply_to_graph(graph, view.names, plan_edits(job.form(view, None).painting))
    after = read_graph(forgotten, job.templates)
    yield f"    {verify.find_violation(view, after, form.edits, form.view)}"


def short(nodes: Any) -> Iterator[str]:
    """Nodes as text, with the attributes that a rewrite may change."""
    from amp_tf.graph import datatypes

    for node in nodes:
        line = f"{node.name} = {node.op}({', '.join(node.input)})"
        for key, value in sorted(node.attr.items()):
            if value.type and node.op != "Cast":
                line += f" {key}={datatypes.type_name(value.type)}"
        yield line


def _edits(edits: Any, view: Any) -> Iterator[str]:
    """One line an edit, with names in place of numbers."""
    from amp_tf.graph import datatypes

    names = [*view.names, *(node.name for node in edits.new)]
    for retype in edits.retypes:
        for slot in retype.each():
            data_type = datatypes.type_name(slot.data_type)
            yield f"    Retype({names[slot.node]}.{slot.attribute}, {data_type})"
    for node in edits.new:
        sources = ", ".join(names[source] for source, _ in node.inputs)
        yield f"    NewNode({node.name}, {node.op}, {sources})"
    for reop in edits.reops:
        yield f"    Reop({names[reop.node]}, {reop.op}, {', '.join(reop.attributes)})"
    for rewire in edits.rewires:
        source = f"{names[rewire.src_node]}:{rewire.src_port}"
        yield f"    Rewire({names[rewire.node]}, input {rewire.position}, {source})"
