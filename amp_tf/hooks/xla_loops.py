"""Casts of what a loop never changes are made once, before the loop.

A weight that a While body multiplies with is cast in each turn, because the body's signature keeps its types. Here the
cast moves to the caller; its result is carried through the loop as one more value, which the body hands on unchanged.
Two kinds of loop variables qualify: a tensor that the body returns as it came, and a variable (a resource) that the
body returns as it came and that neither the body nor the condition does anything to but read.

A function that the body calls casts its own arguments. Such casts move to the body first, from where they may move on.
So do casts in the branches of an If or a Case, but only of what the loop never changes: one cast before the loop costs
less than one in each turn that takes the branch, while a cast that stays in the loop is best left to that branch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any

FunctionDef = Any
NodeDef = Any

CALL_OPS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_DT_FLOAT = 1
_DT_RESOURCE = 20
_F16 = frozenset({14, 19})  # bfloat16 and half, in types.proto
_READ_ONLY = "_read_only_resource_inputs"  # which inputs of a call or a loop are variables that it only reads


@dataclasses.dataclass(frozen=True)
class _Movable:
    """A cast of an argument, or of what is read from a variable that is an argument, which may be made before the call.

    Attributes:
        cast: the number of its node.
        argument: the number of the argument.
        read: the node that reads the variable, ``None`` for a tensor.
    """

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
    fixed = fixed_arguments(cond, body)
    numbers = {number for number, arg in enumerate(body.signature.input_arg) if arg.name in fixed}
    found = _casts_of_arguments(body, numbers, numbers)

    def carry(tensor: str, to: int) -> list[str]:
        return [_carry(caller.node_def[index], cond, body, tensor, to)]

    return _move(caller, index, [(body, found)], carry)


def fixed_arguments(cond: FunctionDef, body: FunctionDef) -> frozenset[str]:
    """The arguments of a loop's body that are the same in each turn: tensors, and variables that are only read."""
    numbers = {arg.name: number for number, arg in enumerate(body.signature.input_arg)}
    nodes = {node.name: node for node in body.node_def}
    fixed = set()
    for out, (name, number) in zip(body.signature.output_arg, numbers.items(), strict=True):
        is_handed_on = _through_identities(body.ret[out.name], nodes) == name
        is_variable = body.signature.input_arg[number].type == _DT_RESOURCE
        if is_handed_on and (not is_variable or all(_is_only_read(number, function) for function in (cond, body))):
            fixed.add(name)
    return frozenset(fixed)


def passed_on(caller: FunctionDef, index: int, callee: FunctionDef, fixed: Container[str]) -> frozenset[str]:
    """The arguments of a called function or branch that are given fixed arguments of the caller."""
    nodes = {node.name: node for node in caller.node_def}
    sources = _passed(caller.node_def[index], callee)
    names = (arg.name for arg in callee.signature.input_arg)
    return frozenset(
        name for name, source in zip(names, sources, strict=True) if _through_identities(source, nodes) in fixed
    )


def lift_casts(
    caller: FunctionDef, index: int, callees: Sequence[FunctionDef], fixed: Container[str] | None = None
) -> int:
    """Moves casts of their own arguments out of functions that a node calls. All are edited in place.

    Args:
        caller: the function that holds the node.
        index: the number of the node in it: a call, an If or a Case.
        callees: the functions that it calls, used by this node alone: one, or every branch.
        fixed: the arguments of the caller of which casts are moved; ``None`` for casts of anything.

    Returns:
        How many casts were moved.
    """
    arguments = callees[0].signature.input_arg
    names = passed_on(caller, index, callees[0], fixed) if fixed is not None else {arg.name for arg in arguments}
    numbers = {number for number, arg in enumerate(arguments) if arg.name in names}
    passed = _passed(caller.node_def[index], callees[0])
    # A variable that is passed twice may be written under its other name.
    readable = {
        n for n in numbers if passed.count(passed[n]) == 1 and all(_is_only_read(n, callee) for callee in callees)
    }
    found = [(callee, _casts_of_arguments(callee, numbers, readable)) for callee in callees]
    return _move(caller, index, found, lambda tensor, to: _pass(caller.node_def[index], callees, tensor, to))


def _passed(call: NodeDef, callee: FunctionDef) -> list[str]:
    """What a node passes to the function that it calls: its data inputs without those that only choose a branch."""
    data = [source for source in call.input if not source.startswith("^")]
    return data[len(data) - len(callee.signature.input_arg) :]


def _move(
    caller: FunctionDef,
    index: int,
    found: Sequence[tuple[FunctionDef, list[_Movable]]],
    hand_over: Callable[[str, int], list[str]],
) -> int:
    """Makes casts in the caller and drops them from the functions that they were found in.

    ``hand_over`` takes a tensor of the caller in and gives its name in each of these functions.
    """
    taken = {node.name for node in caller.node_def} | {arg.name for arg in caller.signature.input_arg}
    handed: dict[tuple[int, int], list[str]] = {}
    for number, (callee, rows) in enumerate(found):
        passed = _passed(caller.node_def[index], callee)
        for row in rows:
            cast = callee.node_def[row.cast]
            to = cast.attr["DstT"].type
            if (row.argument, to) not in handed:
                tensor = _cast_before(caller, index, passed[row.argument], row.read, to, taken)
                handed[row.argument, to] = hand_over(tensor, to)
            _redirect(callee, cast.name, handed[row.argument, to][number])
        _drop(callee, {callee.node_def[row.cast].name for row in rows})
    return sum(len(rows) for _, rows in found)


def _drop(function: FunctionDef, names: set[str]) -> None:
    """Takes casts out of a function, whose results nobody reads any more."""
    if not names:
        return
    copies = [_copy(node) for node in function.node_def if node.name not in names]
    del function.node_def[:]
    function.node_def.extend(copies)


def _casts_of_arguments(function: FunctionDef, tensors: set[int], variables: set[int]) -> list[_Movable]:
    """The casts to a 16-bit type of some arguments: tensors, or variables, of which the value read is cast.

    Casts with control edges are left out: who waits for a cast waits for all that its input comes after.
    """
    nodes = {node.name: node for node in function.node_def}
    awaited = {source[1:] for node in function.node_def for source in node.input if source.startswith("^")}
    awaited.update(function.control_ret.values())
    arguments = {arg.name: number for number, arg in enumerate(function.signature.input_arg)}
    found = []
    for number, node in enumerate(function.node_def):
        if node.op != "Cast" or node.attr["SrcT"].type != _DT_FLOAT or node.attr["DstT"].type not in _F16:
            continue
        if node.name in awaited or any(source.startswith("^") for source in node.input):
            continue
        source = _through_identities(node.input[0], nodes)
        if arguments.get(source) in tensors:
            found.append(_Movable(number, arguments[source], None))
            continue
        read = nodes.get(source.partition(":")[0])
        if read is not None and read.op == "ReadVariableOp":
            argument = arguments.get(_through_identities(read.input[0], nodes))
            if argument in variables:
                found.append(_Movable(number, argument, read))
    return found


def _through_identities(source: str, nodes: dict[str, NodeDef]) -> str:
    """The tensor that a chain of Identity nodes hands on."""
    while (node := nodes.get(source.partition(":")[0])) is not None and node.op == "Identity":
        source = node.input[0]
    return source


def _is_only_read(number: int, function: FunctionDef) -> bool:
    """Whether a function does nothing to its argument, a resource, but read it."""
    argument = function.signature.input_arg[number].name
    nodes = {node.name: node for node in function.node_def}
    for node in function.node_def:
        if node.op in ("Identity", "ReadVariableOp"):
            continue
        used = {place for place, source in enumerate(node.input) if _through_identities(source, nodes) == argument}
        if used and (_READ_ONLY not in node.attr or not used <= set(node.attr[_READ_ONLY].list.i)):
            return False
    return True


def _cast_before(caller: FunctionDef, index: int, source: str, read: NodeDef | None, to: int, taken: set[str]) -> str:
    """Adds the cast (and for a variable the read) to the caller, before a loop or a call; gives the tensor."""
    call = caller.node_def[index]
    order = [control for control in call.input if control.startswith("^")]
    if read is not None:
        early = caller.node_def.add()
        early.CopyFrom(read)
        early.name = _fresh(f"{call.name}/{read.name.rpartition('/')[2]}/before_call", taken)
        del early.input[:]
        early.input.extend([source, *order])  # after the writes that the call itself comes after
        if call.op in CALL_OPS:
            _join(caller, call.name, early.name)
        source = f"{early.name}:value:0"
    cast = caller.node_def.add()
    cast.name = _fresh(f"{call.name}/Cast/before_call", taken)
    cast.op = "Cast"
    cast.device = call.device
    cast.input.append(source)
    cast.attr["SrcT"].type = _DT_FLOAT
    cast.attr["DstT"].type = to
    cast.attr["Truncate"].b = False
    return f"{cast.name}:y:0"


def _join(function: FunctionDef, call: str, read: str) -> None:
    """Lets all that waits for a call wait for a variable's read too, such as the next write of that variable.

    XLA puts the called function in the call's place. What waited for the call then waits for the nodes with effects
    among those of the function, and no longer for what the call was given.
    """
    for node in function.node_def:
        if f"^{call}" in node.input:
            node.input.append(f"^{read}")
    if call in function.control_ret.values():
        result = _fresh(read, set(function.control_ret))
        function.control_ret[result] = read
        function.signature.control_output.append(result)


def _carry(loop: NodeDef, cond: FunctionDef, body: FunctionDef, tensor: str, to: int) -> str:
    """Adds one value to the loop, which the body hands on; gives its name inside the body."""
    _add_input(loop, tensor)
    loop.attr["T"].list.type.append(to)
    if (
        "output_shapes" in loop.attr and loop.attr["output_shapes"].list.shape
    ):  # a look-up alone would add the attribute
        loop.attr["output_shapes"].list.shape.add().unknown_rank = True
    _add_argument(cond, to)
    argument = _add_argument(body, to)
    results = {out.name for out in body.signature.output_arg}
    result = _fresh(f"{argument}_out", results)
    body.signature.output_arg.add(name=result, type=to)
    identity = body.node_def.add()
    identity.name = _fresh(f"{argument}_identity", {node.name for node in body.node_def} | {argument})
    identity.op = "Identity"
    identity.input.append(argument)
    identity.attr["T"].type = to
    body.ret[result] = f"{identity.name}:output:0"
    return argument


def _pass(call: NodeDef, callees: Sequence[FunctionDef], tensor: str, to: int) -> list[str]:
    """Adds one value to a call; gives its name inside each of the functions."""
    _add_input(call, tensor)
    call.attr["Tin"].list.type.append(to)
    return [_add_argument(callee, to) for callee in callees]


def _add_input(node: NodeDef, tensor: str) -> None:
    data = [source for source in node.input if not source.startswith("^")]
    order = [source for source in node.input if source.startswith("^")]
    del node.input[:]
    node.input.extend([*data, tensor, *order])


def _add_argument(function: FunctionDef, data_type: int) -> str:
    used = {arg.name for arg in function.signature.input_arg} | {node.name for node in function.node_def}
    name = _fresh("amp_tf_invariant", used)
    function.signature.input_arg.add(name=name, type=data_type)
    return name


def _redirect(function: FunctionDef, cast: str, new: str) -> None:
    """Lets all that read a cast's result, written ``cast:y:0`` or ``cast:y``, read another tensor."""
    for node in function.node_def:
        for position, source in enumerate(node.input):
            if source.partition(":")[0] == cast:
                node.input[position] = new
    for name, source in function.ret.items():
        if source.partition(":")[0] == cast:
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
