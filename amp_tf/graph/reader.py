"""Reads a GraphDef or a FunctionDef into a :class:`~amp_tf.graph.view.GraphView`; each proto is read once.

What cannot be a graph is refused here, with the node and port: unknown ops, duplicate names, dangling inputs, a wrong
number of inputs, a data input after a control input, edges whose types disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.templates import Signature, Template, Templates, fixed_slot
from amp_tf.graph.view import Edges, GraphView

ARG_OP = "_Arg"
RETVAL_OP = "_Retval"
_BROKEN = "The graph is broken; TensorFlow would refuse it too"

Resolve = Callable[[str], "tuple[int, int] | None"]


def read_graph(graph: Any, templates: Templates) -> GraphView:
    """The view of a GraphDef's nodes (its function library is not read).

    Raises:
        GraphError: the graph is broken; the message names node and port.
    """
    protos = list(graph.node)
    names = [node.name for node in protos]
    index = _index(names, "")
    signatures = _signatures(protos, [node.op for node in protos], templates, "")

    def resolve(text: str) -> tuple[int, int] | None:
        name, _, port = text.rpartition(":")
        node = index.get(name)
        return None if node is None or not port.isdecimal() else (node, int(port))

    return _view("", names, protos, signatures, index, index, resolve, (node.input for node in protos))


def read_function(function: Any, templates: Templates) -> GraphView:
    """The view of a FunctionDef's body, with its arguments as first and its results as last nodes.

    Raises:
        GraphError: the function is broken, or its types are parameters of the call.
    """
    title = function.signature.name
    arguments = [_boundary(arg, ARG_OP, title) for arg in function.signature.input_arg]
    results = [_boundary(arg, RETVAL_OP, title) for arg in function.signature.output_arg]
    body = list(function.node_def)
    protos = [None] * len(arguments) + body + [None] * len(results)
    argument_names = [arg.name for arg in function.signature.input_arg]
    body_names = [node.name for node in body]
    index = _index(argument_names + body_names, title)
    first = len(arguments)
    plain = dict(zip(argument_names, range(first), strict=True))  # a node's outputs are named by argument and port
    signatures = [*arguments, *_signatures(body, [node.op for node in body], templates, title), *results]

    def resolve(text: str) -> tuple[int, int] | None:
        name, _, rest = text.partition(":")
        argument, _, offset = rest.partition(":")
        node = index.get(name)
        if node is None:
            return None
        if node < first:
            return (node, 0) if rest == "0" else None
        start = signatures[node].output_starts.get(argument)
        return None if start is None or not (offset or "0").isdecimal() else (node, start + int(offset or "0"))

    inputs = [[]] * first + [list(node.input) for node in body]
    for arg in function.signature.output_arg:
        if arg.name not in function.ret:
            raise GraphError(f"result {arg.name!r} has no tensor", where=f"function {title!r}", fix=_BROKEN)
        inputs.append([function.ret[arg.name]])
    names = argument_names + body_names + [f"{title}/{arg.name}" for arg in function.signature.output_arg]
    return _view(title, names, protos, signatures, index, plain, resolve, inputs)


def _boundary(arg: Any, op: str, function: str) -> Signature:
    """The signature of a function argument (one output) or result (one input); its type is the function's."""
    if arg.type_attr or arg.type_list_attr or arg.number_attr:
        raise GraphError(
            f"argument {arg.name!r} has a type that each call chooses",
            where=f"function {function!r}",
            fix="Instantiate the function for one set of types first",
        )
    is_argument = op == ARG_OP
    try:
        slot = fixed_slot(function, arg.type)
    except GraphError as error:
        raise GraphError(error.what, where=f"function {function!r}", fix=error.fix) from None
    port = (0,)
    return Signature(
        op, (slot,), () if is_argument else port, port if is_argument else (), {}, False, arg.is_ref, False
    )


def _index(names: list[str], function: str) -> dict[str, int]:
    index = dict(zip(names, range(len(names)), strict=True))
    if len(index) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise GraphError("two nodes have this name", where=_place(function, twice), fix=_BROKEN)
    return index


def _place(function: str, node: str) -> str:
    return f"function {function!r}, node {node!r}" if function else f"node {node!r}"


def _signatures(protos: list[Any], ops: list[str], templates: Templates, function: str) -> list[Signature]:
    by_op: dict[str, Template] = {}
    fixed: dict[str, Signature] = {}
    signatures = []
    for node, op in zip(protos, ops, strict=True):
        signature = fixed.get(op)
        if signature is None:
            try:
                template = by_op.get(op)
                if template is None:
                    template = by_op[op] = templates.find(op)
                    if template.fixed_signature is not None:
                        fixed[op] = template.fixed_signature
                signature = template.signature(node)
            except GraphError as error:
                raise GraphError(error.what, where=_place(function, node.name), fix=error.fix) from None
        signatures.append(signature)
    return signatures


def _view(
    function: str,
    names: list[str],
    protos: list[Any],
    signatures: list[Signature],
    index: dict[str, int],
    plain: dict[str, int],
    resolve: Resolve,
    inputs: Iterable[Sequence[str]],
) -> GraphView:
    """The view; ``plain`` holds the names that stand for a first output as they are, ``resolve`` reads all others."""
    base, dtypes = _types(function, names, protos, signatures)
    edges = _connect(function, names, signatures, base, index, plain, resolve, inputs)
    devices = ["" if node is None else node.device for node in protos]
    ops = [signature.op for signature in signatures]
    view = GraphView(function, names, ops, devices, protos, signatures, base, dtypes, edges)
    _check_edge_types(view)
    return view


def _types(
    function: str, names: list[str], protos: list[Any], signatures: list[Signature]
) -> tuple[list[int], list[int]]:
    """First unit of each node, and the type of each unit."""
    base = [0]
    dtypes: list[int] = []
    for node, signature in enumerate(signatures):
        attrs = None
        for slot in signature.slots:
            if not slot.attr:
                dtypes.append(slot.fixed)
                continue
            if attrs is None:
                attrs = protos[node].attr
            value = attrs.get(slot.attr)  # get, because indexing would add the attribute to the caller's graph
            if value is None:
                dtype = slot.fixed
            elif slot.index < 0:
                dtype = value.type
            else:
                dtype = value.list.type[slot.index] if slot.index < len(value.list.type) else datatypes.INVALID
            if not dtype:
                raise GraphError(f"type attribute {slot} is missing", where=_place(function, names[node]), fix=_BROKEN)
            if dtype != datatypes.base_type(dtype):
                raise GraphError(
                    f"type attribute {slot} is {datatypes.type_name(dtype)}, expected a type that is no reference",
                    where=_place(function, names[node]),
                    fix=_BROKEN,
                )
            dtypes.append(dtype)
        base.append(len(dtypes))
    return base, dtypes


def _connect(
    function: str,
    names: list[str],
    signatures: list[Signature],
    base: list[int],
    index: dict[str, int],
    plain: dict[str, int],
    resolve: Resolve,
    inputs: Iterable[Sequence[str]],
) -> Edges:
    src_node: list[int] = []
    src_port: list[int] = []
    dst_node: list[int] = []
    dst_position: list[int] = []
    src_unit: list[int] = []
    dst_unit: list[int] = []
    for node, texts in enumerate(inputs):
        slots = signatures[node].inputs
        position = 0
        first_unit = base[node]
        for text in texts:
            source = plain.get(text)
            port = 0
            if source is None:
                if text[:1] == "^":
                    break  # control inputs come last; _check_controls looks at the rest
                resolved = resolve(text)
                if resolved is None:
                    raise GraphError(
                        f"input {position} is {text!r}, which is no tensor of this graph",
                        where=_place(function, names[node]),
                        fix=_BROKEN,
                    )
                source, port = resolved
            outputs = signatures[source].outputs
            if port >= len(outputs) or position >= len(slots):
                _refuse_port(function, names, signatures, node, source, port, texts)
            src_node.append(source)
            src_port.append(port)
            dst_node.append(node)
            dst_position.append(position)
            src_unit.append(base[source] + outputs[port])
            dst_unit.append(first_unit + slots[position])
            position += 1
        if position != len(texts):
            _check_controls(function, names, index, node, texts[position:])
        if position != len(slots):
            _refuse_arity(function, names, signatures, node, position)
    return Edges(src_node, src_port, dst_node, dst_position, src_unit, dst_unit)


def _check_controls(function: str, names: list[str], index: dict[str, int], node: int, texts: Sequence[str]) -> None:
    for text in texts:
        if text[:1] != "^":
            raise GraphError(
                f"data input {text!r} comes after a control input", where=_place(function, names[node]), fix=_BROKEN
            )
        if text[1:] not in index:
            raise GraphError(
                f"control input {text!r} names no node of this graph", where=_place(function, names[node]), fix=_BROKEN
            )


def _refuse_port(
    function: str,
    names: list[str],
    signatures: list[Signature],
    node: int,
    source: int,
    port: int,
    texts: Sequence[str],
) -> None:
    if port >= len(signatures[source].outputs):
        raise GraphError(
            f"reads port {port} of {names[source]!r}, which has {len(signatures[source].outputs)} output(s)",
            where=_place(function, names[node]),
            fix=_BROKEN,
        )
    _refuse_arity(function, names, signatures, node, sum(text[:1] != "^" for text in texts))


def _refuse_arity(function: str, names: list[str], signatures: list[Signature], node: int, found: int) -> None:
    signature = signatures[node]
    raise GraphError(
        f"{signature.op} expects {len(signature.inputs)} data input(s) and has {found}",
        where=_place(function, names[node]),
        fix=_BROKEN,
    )


def _check_edge_types(view: GraphView) -> None:
    dtypes = view.dtypes
    edges = view.edges
    source_types = [dtypes[unit] for unit in edges.src_unit]
    wanted_types = [dtypes[unit] for unit in edges.dst_unit]
    if source_types == wanted_types:  # one comparison at C speed for the graphs that are right
        return
    for edge, (found, wanted) in enumerate(zip(source_types, wanted_types, strict=True)):
        if found != wanted:
            raise GraphError(
                f"input {edges.dst_position[edge]} expects {datatypes.type_name(wanted)}"
                f" and gets {datatypes.type_name(found)} from {view.names[edges.src_node[edge]]!r}",
                where=view.where(edges.dst_node[edge]),
                fix=_BROKEN,
            )
