"""Text form of a graph: one line a node, for golden tests, diffs and bug reports.

A line reads ``name = Op(inputs) T=float32 … @device ^controls``; parts that are empty are left out.
Nodes keep the order of the graph and attributes are sorted by name, so that equal graphs have equal
texts and a rewrite shows as the lines that it changed. A constant shows only its type and shape.
The functions of the library follow, sorted by name.
"""

from amp_tf.graph import datatypes

_INDENT = "  "


def to_text(graph):
    """The text form of a GraphDef, with its function library, or of a FunctionDef."""
    lines = _function_lines(graph) if hasattr(graph, "node_def") else _graph_lines(graph)
    return "".join(f"{line}\n" for line in lines)


def node_to_text(node):
    """The line of one NodeDef."""
    data = ", ".join(text for text in node.input if not text.startswith("^"))
    parts = [f"{node.name} = {node.op}({data})"]
    parts += (f"{name}={_value(node.attr[name])}" for name in sorted(node.attr))
    if node.device:
        parts.append(f"@{node.device}")
    parts += (text for text in node.input if text.startswith("^"))
    return " ".join(parts)


def _graph_lines(graph):
    yield from map(node_to_text, graph.node)
    for function in sorted(graph.library.function, key=lambda function: function.signature.name):
        yield ""
        yield from _function_lines(function)


def _function_lines(function):
    signature = function.signature
    arguments, results = (
        _joined(f"{arg.name}: {datatypes.type_name(arg.type)}" for arg in side)
        for side in (signature.input_arg, signature.output_arg)
    )
    attributes = "".join(f" {name}={_value(function.attr[name])}" for name in sorted(function.attr))
    yield f"function {signature.name}({arguments}) -> ({results}){attributes}"
    for node in function.node_def:
        yield _INDENT + node_to_text(node)
    for result in signature.output_arg:
        yield f"{_INDENT}return {result.name} = {function.ret[result.name]}"


def _value(attr):
    kind = attr.WhichOneof("value")
    value = getattr(attr, kind)
    if kind != "list":
        return _scalar(kind, value)
    # A list's kind is the one of its fields that has entries; of an empty list it cannot be told.
    entries = next(((field.name, entries) for field, entries in value.ListFields()), ("", ()))
    return f"[{_joined(_scalar(entries[0], entry) for entry in entries[1])}]"


def _scalar(kind, value):
    if kind == "type":
        return datatypes.type_name(value)
    if kind == "shape":
        return _shape(value)
    if kind == "tensor":
        return f"{datatypes.type_name(value.dtype)}{_shape(value.tensor_shape)}"
    if kind == "func":
        return f"{value.name}()"
    if kind == "s":
        return repr(value.decode("utf-8", "backslashreplace"))
    if kind == "b":
        return str(value).lower()
    if kind == "f":
        return f"{value:.9g}"  # the shortest that tells every two float32 values apart
    return str(value)


def _shape(shape):
    return f"[{_joined('?' if dim.size < 0 else str(dim.size) for dim in shape.dim)}]"


def _joined(texts):
    return ", ".join(texts)
