"""The examples in the docstrings of the rules, painted without the rule and with it.

An example is a graph, one line a node; behind a node stands what it computes in, where that is 16
bit or changes by the rule: ``f16 → float32``. A new example is written without these marks: the
failing test prints it with them. Names that no line defines are placeholders of the type that their
reader asks for, but for ``bias``, a variable. Attributes without a default are given, as in
``DecodeRaw(text) out_type=float32``. If leaving out the rule changes nothing, another rule keeps
the node as well: a sum of a product and a placeholder, which is exact (add ``bias`` instead), or a
result that no product reads. The heading names the precision, and settings or the row where there
are several::

    Example (float16, force_f16=^sin1$)::
"""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

import pytest

from amp_tf.graph.attributes import read_types
from amp_tf.graph.datatypes import type_name
from amp_tf.graph.templates import Templates
from amp_tf.painting.paint import RULES
from tests.left_out import without
from tests.painting.painted import painted
from tests.rewriting.rewritten import shaped
from tests.small_graphs import graph, node

HEADED = re.compile(
    r"^Example \((?P<settings>[^)]*)\)::\n\n(?P<lines>(?:    .*(?:\n|\Z))+)", re.MULTILINE
)
MARK = re.compile(r"\s{2,}(?:f16|float32)\b.*$")
VARIABLE = (
    "of_bias = VarHandleOp() dtype=float32 shape=[4]\nbias = ReadVariableOp(of_bias) dtype=float32"
)


class Example(NamedTuple):
    """A graph and the settings under which it is painted, with the text that says what comes of
    it.
    """

    settings: dict
    nodes: list[str]
    text: str


def examples_of(row):
    """The examples in the docstring of a row's rule, but for those of another row."""
    found = []
    for match in HEADED.finditer(inspect.getdoc(row.apply) or ""):
        precision, *others = match["settings"].split(", ")
        settings = {"precision": precision}
        rows = set()
        for other in others:
            key, is_setting, value = other.partition("=")
            if is_setting:
                settings[key] = (value,)
            else:
                rows.add(other)
        if rows <= {row.name}:
            text = inspect.cleandoc(match["lines"])
            lines = [MARK.sub("", line) for line in text.splitlines()]
            found.append(Example(settings, lines, text))
    return found


def converted_types(example):
    """The types of each node that become 16 bit.

    Shapes are those that TensorFlow infers, for the cost model.
    """
    nodes = [node(line) for line in example.nodes]
    defined = {node.name for node in nodes}
    read = {}
    for reader in nodes:
        signature = Templates().find(reader.op).signature(reader)
        types = read_types([reader], [signature])
        for text, place in zip(reader.input, signature.inputs, strict=True):
            read.setdefault(text.partition(":")[0], types[place])
    given = []
    for name, data_type in read.items():
        if name == "bias" and name not in defined:
            given.append(VARIABLE)
        elif name not in defined:
            given.append(f"{name} = Placeholder() dtype={type_name(data_type)}")
    build = shaped if example.settings["precision"] == "auto" else graph
    made = build("\n".join([*given, *example.nodes]))
    types = {}
    for unit in painted(made, **example.settings).f16_types.split():
        name, _, slot = unit.rpartition(".")
        types.setdefault(name, []).append(slot)
    return types


def marked(example, row):
    """The lines of an example with what its nodes compute in without the row, and with it."""
    after = converted_types(example)
    with without([row.name]):
        before = converted_types(example)
    width = max(map(len, example.nodes)) + 2
    lines = []
    for line in example.nodes:
        name = node(line).name
        old = before.get(name, [])
        new = after.get(name, [])
        names_types = bool(old and new)
        mark = ""
        if old != new:
            mark = f"{words_for(old, names_types)} → {words_for(new, names_types)}"
        elif new:
            mark = "f16"
        lines.append(f"{line:<{width}}{mark}".rstrip())
    return "\n".join(lines)


def words_for(types, names_types):
    """Returns the mark of a node with these 16-bit types, with the types' names if asked."""
    if not types:
        return "float32"
    if names_types:
        return f"f16 ({', '.join(types)})"
    return "f16"


@pytest.mark.parametrize("row", RULES, ids=[row.name for row in RULES])
def test_each_rule_has_an_example_that_shows_what_it_does(row):
    examples = examples_of(row)
    assert examples, f"the rule of the row {row.name!r} has no example in its docstring"
    for example in examples:
        wanted = marked(example, row)
        assert "→" in wanted, f"leaving out {row.name!r} changes nothing in its example"
        assert example.text == wanted, f"the example should read:\n\n{wanted}\n"
