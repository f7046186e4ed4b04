"""Reads a variable once where it is read many times with no write between, so that it is cast once.

A layer that is shared, or a recurrent cell that is unrolled, reads its weights in each call, and each read would have a
cast of its own.

    before:  handle → read, read_1, read_2, each → Cast → MatMul
    after:   handle → read → Cast → MatMul, MatMul_1, MatMul_2

A read that waits for nothing, of a handle that the graph is given, comes before every write that it must not see: what
TensorFlow orders behind a write waits for it, and in branches and loops the handle comes in by another node. So all
such reads give the same value. The others stay where they are, for what waits for them. Where nothing becomes 16 bit
this is dropped, and a second rewrite finds nothing to share. Functions for XLA are left alone: XLA makes one cast of
equal ones.

Difference "shared-reads": TensorFlow's pass casts each read.
"""

from __future__ import annotations

from amp_tf.graph.algorithms import control_links
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Edits, Rewire
from amp_tf.oplists.table import ALLOW, BIASES, READ_OPS, VARIABLE_HANDLES
from amp_tf.rewriting.form import Form, Job


def share_reads(form: Form, job: Job) -> Form:
    """Has what reads of one variable give read from the first of them; the form itself where there is one of each.

    Only of reads for products and biases: elsewhere there is no cast to share.
    """
    view, target = form.view, job.resolution.target
    if target is None:
        return form
    reads = view.nodes_with(READ_OPS)
    waiting = {node for _, node in control_links(view)} if len(reads) > 1 else set()
    computing = {*target.lists.members(ALLOW), *BIASES}
    alike: dict[tuple[Node, int, str], list[Node]] = {}
    for node in reads:
        source, port = view.inputs(node)[0]
        is_given = view.ops[source] == ARG_OP or view.ops[source] in VARIABLE_HANDLES
        if is_given and node not in waiting and any(view.ops[reader] in computing for reader, _ in view.readers(node)):
            alike.setdefault((source, port, view.devices[node]), []).append(node)
    rewires = [
        Rewire(reader, position, first, 0)
        for first, *others in alike.values()
        for node in others
        for reader, position in view.readers(node)
    ]
    return form.then(Edits(rewires=tuple(rewires)), job.templates, {}) if rewires else form
