"""Moves casts of what a functional loop only reads before the loop, in programs for XLA.

A weight is read in each iteration: its handle is a loop variable that the body gives back, and a
ReadVariableOp stands in the body, with the cast to 16 bit behind it. XLA's compiler for GPUs leaves
both there, so the loop moves more bytes than it does in float32. Here the cast value becomes a loop
variable of its own::

    body(y, w):
        read = ReadVariableOp(w)
        cast = Cast(read)
        return MatMul(y, cast), w

becomes, with the read and the cast before the loop::

    body(y, w, amp_tf_cast_0):
        return MatMul(y, amp_tf_cast_0), w, amp_tf_cast_0

The nodes in the body stay, without readers, and XLA drops them. A float32 loop variable that the
body gives back is treated alike. A loop is left as it is if it, or a function that it calls, may
write a float32 variable, and if something else calls its body or condition. Loops that TensorFlow's
graph optimizers see are no functions: there :mod:`amp_tf.rewriting.hoisting` moves the reads.
"""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from amp_tf.errors import RewriteError
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Node
from amp_tf.graph.names import HOIST_SUFFIX, FreshNames
from amp_tf.graph.reader import RETVAL_OP, read_function
from amp_tf.graph.sizes import SHAPES_ATTR
from amp_tf.graph.templates import Templates, referenced
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.rewriting.hoisting import may_write, source_of

_F16 = (datatypes.BFLOAT16, datatypes.HALF)


def move_casts(functions: Iterable[Any], templates: Templates) -> Mapping[str, Any]:
    """Moves casts in copies of FunctionDefs.

    Args:
        functions: a converted program: a function, and all that may change of those it calls.
        templates: know the functions that it calls.

    Returns:
        The copies that changed, by name.

    Raises:
        RewriteError: a changed function is broken, which is a bug of amp_tf.
    """
    given = {function.signature.name: function for function in functions}
    callers: collections.Counter[str] = collections.Counter()
    for function in given.values():
        for node in function.node_def:
            callers.update(referenced(node))
    changed: dict[str, Any] = {}
    for name, function in given.items():
        for number, loop in enumerate(function.node_def):
            if not table.is_loop(loop.op):
                continue
            body = loop.attr["body"].func.name
            condition = loop.attr["cond"].func.name
            if any(each not in given or callers[each] != 1 for each in (body, condition)):
                continue
            if _may_write((body, condition), given, templates):
                continue
            view = read_function(given[body], templates)
            for cast, variable in _casts_of_constants(view):
                for each in (name, body, condition):
                    changed.setdefault(each, copy.deepcopy(given[each]))
                early = _add_before(changed[name], number, view, cast, variable)
                _add_variable(changed[body], changed[condition], view.names[cast], early)
    for function in changed.values():
        _check(function, templates)
    return changed


def _check(function: Any, templates: Templates) -> None:
    """Raises an error unless all inputs exist and have the types of what they read."""
    view = read_function(function, templates)
    types = np.asarray(view.dtypes)
    if (types[view.edges.src_unit] != types[view.edges.dst_unit]).any():
        raise RewriteError(
            f"a cast was moved out of a loop wrongly in function {view.function!r}",
            fix="This is a bug of amp_tf; please report it. The original function is untouched",
        )


def _may_write(names: Iterable[str], given: Mapping[str, Any], templates: Templates) -> bool:
    """Tells whether some functions, or those that they call, may write a float32 variable."""
    called = dict.fromkeys(names)
    unvisited = list(called)
    while unvisited:
        view = read_function(given[unvisited.pop()], templates)
        inner = range(len(view.nodes_with((ARG_OP, RETVAL_OP))), view.node_count)
        for node in inner:
            callees = set(referenced(view.protos[node])) - {view.ops[node]}
            if callees and callees <= given.keys():
                new = callees - called.keys()
                called |= dict.fromkeys(new)
                unvisited += new
            elif may_write(view, node, templates.is_function):
                return True
    return False


def _casts_of_constants(body: GraphView) -> Iterator[tuple[Node, int]]:
    """Yields the casts of loop variables that the body gives back, and of variables by them.

    Each comes with the number of the loop variable.
    """
    constants = {}
    ends = zip(body.nodes_with((ARG_OP,)), body.nodes_with((RETVAL_OP,)), strict=True)
    for number, (argument, result) in enumerate(ends):
        if source_of(body, result) == argument:
            constants[argument] = number
    for cast in body.nodes_with(table.CASTS):
        attributes = body.protos[cast].attr
        narrows = attributes["SrcT"].type == datatypes.FLOAT and attributes["DstT"].type in _F16
        source = source_of(body, cast)
        if body.ops[source] in table.READ_OPS:
            source = source_of(body, source)
        if narrows and source in constants:
            yield cast, constants[source]


def _add_before(caller: Any, number: int, body: GraphView, cast: Node, variable: int) -> int:
    """Adds a cast before a loop, with the read that it needs, and hands its value to the loop.

    Returns its type.

    Args:
        caller: the function that holds the loop; it is changed.
        number: of the loop among its nodes.
        body: the loop's body.
        cast: a node of the body.
        variable: the number of the loop variable that is cast.
    """
    loop = caller.node_def[number]
    data = [text for text in loop.input if not text.startswith("^")]
    controls = loop.input[len(data) :]
    taken = [node.name for node in caller.node_def]
    names = FreshNames([*taken, *(arg.name for arg in caller.signature.input_arg)], HOIST_SUFFIX)
    value = data[variable]
    read = source_of(body, cast)
    if body.ops[read] in table.READ_OPS:
        early = caller.node_def.add()
        early.CopyFrom(body.protos[read])
        early.name = names.make(f"{loop.name}-Read")
        early.input[:] = [value, *controls]
        value = f"{early.name}:value:0"
    early = caller.node_def.add()
    early.CopyFrom(body.protos[cast])
    early.name = names.make(loop.name)
    early.input[:] = [value]
    loop.input[:] = [*data, f"{early.name}:y:0", *controls]
    data_type: int = early.attr["DstT"].type
    loop.attr["T"].list.type.append(data_type)
    for shapes in ("output_shapes", SHAPES_ATTR):
        _add_shape(loop, shapes)
    return data_type


def _add_variable(body: Any, condition: Any, cast: str, data_type: int) -> None:
    """Gives a loop's body and condition one more argument, which the body has in place of a cast.

    Both are changed.
    """
    taken = {node.name for node in (*body.node_def, *condition.node_def)}
    taken.update(arg.name for arg in body.signature.input_arg)
    taken.update(arg.name for arg in condition.signature.input_arg)
    numbered = (f"amp_tf_cast_{number}" for number in itertools.count())
    name = next(name for name in numbered if name not in taken)
    for function in (body, condition):
        function.signature.input_arg.add(name=name, type=data_type)
        _add_shape(function, "_input_shapes")  # of a graph that was imported from a file
    body.signature.output_arg.add(name=name, type=data_type)
    was = f"{cast}:y:0"
    for node in body.node_def:
        node.input[:] = [name if text == was else text for text in node.input]
    for result, text in [*body.ret.items()]:
        if text == was:
            body.ret[result] = name
    body.ret[name] = name


def _add_shape(definition: Any, attribute: str) -> None:
    """Adds an unknown shape to the list in an attribute of a NodeDef or FunctionDef, if it is there
    and not empty.
    """
    if attribute in definition.attr and definition.attr[attribute].list.shape:
        definition.attr[attribute].list.shape.add(unknown_rank=True)
