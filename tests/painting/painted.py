"""Paints a graph that is written as text, for the tests of the rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.cpu.economy import drop_unprofitable
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.templates import Templates
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import SUCCESSORS
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.eligibility import find_obstacles
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import paint
from amp_tf.painting.reasons import Code, Reason
from tests.rewriting.rewritten import shaped
from tests.small_graphs import function, graph, run

BF16_CPU = Hardware(cpu_has_bf16=True)
VOLTA = Hardware(gpu_capabilities=((7, 0),))


@dataclasses.dataclass(frozen=True)
class Painted:
    """A painting, by names."""

    painting: Painting

    @property
    def f16(self) -> str:
        """The nodes that become 16 bit, in the order of the graph, separated by blanks."""
        names = self.painting.view.names
        return " ".join(names[node] for node in self.painting.converted_nodes())

    @property
    def f16_types(self) -> str:
        """The types that become 16 bit, as ``node.attr``."""
        view = self.painting.view
        types = []
        for unit in self.painting.converted:
            node = view.unit_nodes[unit]
            types.append(f"{view.names[node]}.{view.slot(node, unit)}")
        return " ".join(types)

    def why(self, name: str) -> tuple[Code, str]:
        """The reason that decided on a node, and the node that brought it about."""
        reason = self.reason(name)
        return reason.code, reason.cause

    def reason(self, name: str) -> Reason:
        number = self.painting.view.names.index(name)
        return self.painting.reason(number)

    def told(self, name: str) -> str:
        """The name of the reason's code, and its cause if there is one."""
        code, cause = self.why(name)
        return f"{code.name} {cause}".strip()

    def code(self, name: str) -> Code:
        return self.why(name)[0]

    def words(self, name: str) -> str:
        return str(self.reason(name))


def painted(text, *library, preserve=(), hardware=BF16_CPU, **settings) -> Painted:
    """Paints a graph, or a function if the text starts with ``function``; float16 unless the
    settings say otherwise.

    A graph that is none of text is taken as it is.
    """
    settings.setdefault("precision", "float16")
    config = AmpConfig(**settings)
    templates = Templates(graph("", *library).library, SUCCESSORS)
    if isinstance(text, str) and text.strip().startswith("function "):
        view = read_function(function(text), templates)
    else:
        view = read_graph(graph(text) if isinstance(text, str) else text, templates)
    resolution = resolve_target(config, hardware)
    obstacles = find_obstacles(view, resolution, config, preserve)
    return Painted(
        paint(
            view,
            resolution,
            obstacles,
            templates=templates,
            cost_model=drop_unprofitable,
        )
    )


#: Both devices' defaults: bfloat16 on a CPU, float16 on a GPU.
CPU = {"precision": "bfloat16", "target": "cpu"}
GPU = {"precision": "float16", "target": "gpu"}
both = pytest.mark.parametrize("settings", [CPU, GPU], ids=["bfloat16", "float16"])


def check(text: str, f16: str, rules: Mapping[str, Code], settings: Mapping[str, Any]) -> None:
    """Which nodes become 16 bit, and the rules by which some stay; with a ``+`` before them, at
    least these become.
    """
    result = painted(text, **settings)
    found = result.f16.split()
    if f16.startswith("+"):
        at_least = f16[1:].split()
        assert set(at_least) <= set(found)
    else:
        assert found == f16.split()
    for name, rule in rules.items():
        assert result.code(name) == rule, name


def rewritten(text, hardware=BF16_CPU, **settings):
    """Rewrites a graph with shapes; the graph, what it became, and the decisions by name."""
    settings.setdefault("precision", "bfloat16")
    graph_def = shaped(text)
    result = amp_tf.rewrite(graph_def, AmpConfig(**settings), preserve=["fetch"], hardware=hardware)
    return graph_def, result.graph, {node.name: node for node in result.report.nodes}


def fetched(proto, **feeds):
    """The value of ``fetch``."""
    tensors = {}
    for name, value in feeds.items():
        tensors[f"{name}:0"] = value
    return run(proto, ["fetch"], tensors)[0]
