"""Ordinary blocks of layers, with their defaults: no product of theirs is float32 but for its cost,
and all is decided as in the table of decisions.

Training and inference, for a GPU in float16, without XLA and with it, and for the CPU of a shipped
table, of which each block gets another one in turn: they differ in numbers alone, and
``benchmarks.decisions --check --names quick`` asks all of them. Nothing runs, so every host decides
the same.
"""

from __future__ import annotations

import pytest
from tensorflow.core.framework import function_pb2

from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import PRODUCTS
from amp_tf.painting.reasons import Code
from amp_tf.rewriting import pipeline
from benchmarks.decisions import table, traces
from benchmarks.decisions.figures import figures_of
from benchmarks.decisions.rewriting import rewrite, targets
from benchmarks.models.blocks import BLOCKS

ON_A_GPU = AmpConfig(precision="float16", target="gpu")


@pytest.fixture(scope="module")
def all_modes(tmp_path_factory):
    return list(targets(tmp_path_factory.mktemp("tables")).values())


@pytest.fixture
def modes(all_modes, name, way):
    """A CPU, which is another one for the next block and for the other way, and the GPU."""
    *cpus, gpu = all_modes
    number = list(BLOCKS).index(name) + traces.WAYS.index(way)
    return cpus[number % len(cpus)], gpu


def report_with_xla(concrete):
    """The report of the function and all that it calls, as XLA's hook rewrites them for a GPU."""
    functions = list(concrete.graph.as_graph_def().library.function)
    library = function_pb2.FunctionDefLibrary(function=functions)
    hardware = Hardware(gpu_capabilities=((9, 0),), is_xla=True)
    return pipeline.rewrite_program(concrete.function_def, functions, ON_A_GPU, hardware, library)


def float32_products(mode, report):
    """Mode, node, op and reason of each product that is float32 for another reason than its
    cost.
    """
    for graph in report.graphs:
        painting = graph.painting
        view = painting.view
        for number, op in enumerate(view.ops):
            if op not in PRODUCTS:
                continue
            rule = painting.reason(number).code
            if not rule.converts and rule is not Code.DOES_NOT_PAY:
                yield f"{mode}: {view.names[number]} ({op}): {rule.name}"


@pytest.mark.slow
@pytest.mark.parametrize("way", traces.WAYS)
@pytest.mark.parametrize("name", BLOCKS)
def test_no_product_of_an_ordinary_block_is_float32_but_for_its_cost(name, way, modes):
    concrete = traces.step(name, way)
    lines = []
    now = {}
    for mode in modes:
        graph = traces.optimized(concrete, mode.device)
        result = rewrite(graph, mode)
        assert result.report.converted  # or there would be nothing to see
        lines += float32_products(mode.name, result.report)
        now[name, way, mode.name] = figures_of(graph, result.graph, mode.table)
    for result in report_with_xla(concrete):
        lines += float32_products("gpu-float16, XLA", result.report)
    assert not lines, "\n".join(lines)

    committed = {}
    for key, row in table.read(table.COMMITTED).items():
        if key in now:
            committed[key] = row
    changed = table.differences(committed, now)
    hint = "python -m benchmarks.decisions makes the table anew; say why it changed"
    assert not changed, "\n".join([*changed, hint])
