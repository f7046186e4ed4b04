"""Casts of what a loop never changes are made once, before the loop.

A weight that a While body multiplies with is cast in each turn, because the body's signature keeps its types. Here the
cast moves to the caller; its result is carried through the loop as one more value, which the body hands on unchanged.
Two kinds of loop variables qualify: a tensor that the body returns as it came, and a variable (a resource) that the
body returns as it came and that neither the body nor the condition does anything to but read.
"""

from __future__ import annotations

import dataclasses
from typing import Any

FunctionDef = Any
NodeDef = Any

_DT_FLOAT = 1
_F16 = frozenset({14, 19})  # bfloat16 and half, in types.proto
_READ_ONLY = "_read_only_resource_inputs"  # which inputs of a call or a loop are variables that it only reads


@dataclasses.dataclass(frozen=True)
class _Invariant:
    """A cast in the body of something that no turn of the loop changes."""

    cast: int
    argument: int
    read: NodeDef | None


def hoist_casts(caller: FunctionDef, index: int, cond: FunctionDef, body: FunctionDef) -> int:
    """Moves casts to a 16-bit type out of one While loop. All three functions are edited in place.

    Args:
        caller: the function that holds the loop.
        index: the number of the While node in it.
        cond: the condition, used by this loop alone.
        body: the body, used by this loop alone.

    Returns:
        How many casts were moved.
    """
    found = _invariant_casts(cond, body)
    if not found:
        return 0
    taken = {node.name for node in caller.node_def} | {arg.name for arg in caller.signature.input_arg}
    carried: dict[tuple[int, int], str] = {}
    for row in found:
        cast = body.node_def[row.cast]
        to = cast.attr["DstT"].type
        if (row.argument, to) not in carried:
            before = _cast_before_loop(caller, index, row, to, taken)
            carried[row.argument, to] = _carry(caller.node_def[index], cond, body, before, to)
        _redirect(body, f"{cast.name}:y:0", carried[row.argument, to])
    moved = {body.node_def[row.cast].name for row in found}
    kept = [node for node in body.node_def if node.name not in moved]
    for node in kept:  # a control edge from a cast orders nothing: casts have no effects
        wanted = [source for source in node.input if not (source.startswith("^") and source[1:] in moved)]
        if len(wanted) != len(node.input):
            del node.input[:]
            node.input.extend(wanted)
    copies = [_copy(node) for node in kept]
    del body.node_def[:]
    body.node_def.extend(copies)
    return len(moved)


def _invariant_casts(cond: FunctionDef, body: FunctionDef) -> list[_Invariant]:
    nodes = {node.name: node for node in body.node_def}
    arguments = {arg.name: number for number, arg in enumerate(body.signature.input_arg)}
    constant = {
        number
        for number, out in enumerate(body.signature.output_arg)
        if number < len(body.signature.input_arg)
        and arguments.get(_through_identities(body.ret[out.name], nodes)) == number
    }
    readable = {number for number in constant if _is_only_read(number, cond) and _is_only_read(number, body)}
    found = []
    for number, node in enumerate(body.node_def):
        if node.op != "Cast" or node.attr["SrcT"].type != _DT_FLOAT or node.attr["DstT"].type not in _F16:
            continue
        if any(source.startswith("^") for source in node.input):
            continue
        source = _through_identities(node.input[0], nodes)
        if arguments.get(source) in constant:
            found.append(_Invariant(number, arguments[source], None))
            continue
        read = nodes.get(source.partition(":")[0])
        if read is not None and read.op == "ReadVariableOp":
            argument = arguments.get(_through_identities(read.input[0], nodes))
            if argument in readable:
                found.append(_Invariant(number, argument, read))
    return found


def _through_identities(source: str, nodes: dict[str, NodeDef]) -> str:
    """The tensor that a chain of Identity nodes hands on."""
    while (node := nodes.get(source.partition(":")[0])) is not None and node.op == "Identity":
        source = node.input[0]
    return source


def _is_only_read(number: int, function: FunctionDef) -> bool:
    """Whether a function does nothing to its argument, a resource, but read it."""
    names = {function.signature.input_arg[number].name}
    for node in function.node_def:
        used = {position for position, source in enumerate(node.input) if source in names}
        if not used:
            continue
        if node.op == "Identity":
            names.add(f"{node.name}:output:0")
        elif node.op != "ReadVariableOp" and (
            _READ_ONLY not in node.attr or not used <= set(node.attr[_READ_ONLY].list.i)
        ):
            return False
    return True


def _cast_before_loop(caller: FunctionDef, index: int, row: _Invariant, to: int, taken: set[str]) -> str:
    """Adds the cast (and for a variable the read) to the caller; gives the tensor."""
    loop = caller.node_def[index]
    source = loop.input[row.argument]
    order = [control for control in loop.input if control.startswith("^")]
    if row.read is not None:
        read = caller.node_def.add()
        read.CopyFrom(row.read)
        read.name = _fresh(f"{loop.name}/{row.read.name.rpartition('/')[2]}/before_loop", taken)
        del read.input[:]
        read.input.extend([source, *order])  # after the writes that the loop itself comes after
        source = f"{read.name}:value:0"
    cast = caller.node_def.add()
    cast.name = _fresh(f"{loop.name}/Cast/before_loop", taken)
    cast.op = "Cast"
    cast.device = loop.device
    cast.input.append(source)
    cast.attr["SrcT"].type = _DT_FLOAT
    cast.attr["DstT"].type = to
    cast.attr["Truncate"].b = False
    return f"{cast.name}:y:0"


def _carry(loop: NodeDef, cond: FunctionDef, body: FunctionDef, tensor: str, to: int) -> str:
    """Adds one value to the loop, which the body hands on; gives its name inside the body."""
    data = [source for source in loop.input if not source.startswith("^")]
    order = [source for source in loop.input if source.startswith("^")]
    del loop.input[:]
    loop.input.extend([*data, tensor, *order])
    loop.attr["T"].list.type.append(to)
    if (
        "output_shapes" in loop.attr and loop.attr["output_shapes"].list.shape
    ):  # a look-up alone would add the attribute
        loop.attr["output_shapes"].list.shape.add().unknown_rank = True
    names = []
    for function in (cond, body):
        used = {arg.name for arg in function.signature.input_arg} | {node.name for node in function.node_def}
        name = _fresh("amp_tf_invariant", used)
        function.signature.input_arg.add(name=name, type=to)
        names.append(name)
    results = {out.name for out in body.signature.output_arg}
    result = _fresh(f"{names[1]}_out", results)
    body.signature.output_arg.add(name=result, type=to)
    identity = body.node_def.add()
    identity.name = _fresh(f"{names[1]}_identity", {node.name for node in body.node_def} | {names[1]})
    identity.op = "Identity"
    identity.input.append(names[1])
    identity.attr["T"].type = to
    body.ret[result] = f"{identity.name}:output:0"
    return names[1]


def _redirect(function: FunctionDef, old: str, new: str) -> None:
    for node in function.node_def:
        for position, source in enumerate(node.input):
            if source == old:
                node.input[position] = new
    for name, source in function.ret.items():
        if source == old:
            function.ret[name] = new


def _fresh(name: str, taken: set[str]) -> str:
    number, candidate = 0, name
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


def _copy(node: NodeDef) -> NodeDef:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy
