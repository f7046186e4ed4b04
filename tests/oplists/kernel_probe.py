"""Runs this CPU's kernels over the attributes of their ops: which do 16-bit ones refuse?

    python -m tests.oplists.kernel_probe            a line for each case that is refused
    python -m tests.oplists.kernel_probe --json     for tests: oneDNN's types, and all outcomes

Each case is a function of one node between casts. TensorFlow checks the nodes of a function by
their kernels alone, those of a graph by their op's definition too, which for _FusedConv2D lists
less.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework import op_def_registry

from tests.as_cpu import onednn

TYPES = ("float16", "bfloat16")
RUNS = "runs"
REFUSES = "refuses"
DIFFERS = "differs"
FAILS_IN_FLOAT32 = "fails in float32"
#: Relative to the result: more than the roundings of a few hundred terms, less than what an
#: attribute changes.
_TOLERANCE = 0.05
#: Its result is wrong, in float32 too, where nothing else reads its peepholes: it writes gradients
#: over them.
_WRONG = "LSTMBlockCellGrad"
#: Numbers of types.proto.
_FLOAT = 1
_INT32 = 3
_SIDE = 10
_TAPS = 3
_CHANNELS = 4
_OUT = 8
#: cases in one session, which looks through all of its graph for each result that it is asked for
_TOGETHER = 40

Input = tuple[int, ...] | Any  #: the shape of a tensor of floats, or an array of whole numbers


@dataclasses.dataclass(frozen=True)
class Case:
    """A node: what it reads, and its attributes but for its types.

    Attributes:
        op: its op.
        attributes: by their names.
        inputs: what it reads.
        behind: the op, with the same attributes, that makes its second input of its first; empty
            for none.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Input]
    behind: str = ""

    def __str__(self) -> str:
        shapes = ", ".join(
            str(given if isinstance(given, tuple) else given.tolist()) for given in self.inputs
        )
        return f"{self.op}({shapes}) " + " ".join(
            f"{name}={value}" for name, value in self.attributes.items()
        )

    @property
    def values(self) -> list[Any]:
        """Makes the inputs, the same numbers in every process."""
        random = np.random.default_rng(zlib.crc32(str(self).encode()))
        values = [
            given if isinstance(given, np.ndarray) else random.random(given, np.float32)
            for given in self.inputs
        ]
        return [np.asarray(value) for value in values]


def cases() -> list[Case]:
    """All cases whose op this TensorFlow has."""
    made = (_convolutions(), _matrices(), _pools(), _normalizations(), _recurrent())
    return [case for case in itertools.chain(*made) if op_def_registry.get(case.op) is not None]


def _laid_out(layout: str, batch: Any, sides: Sequence[Any], channels: Any) -> list[Any]:
    return [batch, channels, *sides] if layout.startswith("NC") else [batch, *sides, channels]


def _layouts(dimensions: int) -> tuple[str, str]:
    return ("NHWC", "NCHW") if dimensions == 2 else ("NDHWC", "NCDHW")


def _size_after(taps: int, stride: int, dilation: int, padding: str) -> int:
    padded = _SIDE + (3 if padding == "EXPLICIT" else 0)
    return (
        math.ceil(_SIDE / stride)
        if padding == "SAME"
        else (padded - (taps - 1) * dilation - 1) // stride + 1
    )


def _convolutions() -> Iterator[Case]:
    for depthwise, sides in ((False, 2), (True, 2), (False, 3)):
        paddings = ("SAME", "VALID", "EXPLICIT") if sides == 2 else ("SAME", "VALID")
        groups = (1, 2) if not depthwise and sides == 2 else (1,)
        for layout, padding, dilation, group in itertools.product(
            _layouts(sides), paddings, (1, 2), groups
        ):
            yield from _convolution(layout, padding, 1, dilation, group, depthwise, sides)
        yield from _convolution(_layouts(sides)[0], "SAME", 2, 1, 1, depthwise, sides)
    pads = np.array([[0, 0], [1, 1], [2, 1], [0, 0]], np.int32)
    for mode, padding, stride in itertools.product(
        ("REFLECT", "SYMMETRIC"), ("SAME", "VALID"), (1, 2)
    ):
        attributes = {"mode": mode, "padding": padding, "strides": [1, stride, stride, 1]}
        yield Case("FusedPadConv2D", attributes, ((2, _SIDE, _SIDE, 4), pads, (3, 3, 4, 8)))


def _convolution(
    layout: str, padding: str, stride: int, dilation: int, groups: int, depthwise: bool, sides: int
) -> Iterator[Case]:
    after = _size_after(_TAPS, stride, dilation, padding)
    x = tuple(_laid_out(layout, 2, [_SIDE] * sides, _CHANNELS))
    y = tuple(_laid_out(layout, 2, [after] * sides, _OUT))
    channels = (_CHANNELS, _OUT // _CHANNELS) if depthwise else (_CHANNELS // groups, _OUT)
    taps = (*[_TAPS] * sides, *channels)
    attributes: dict[str, Any] = {
        "strides": _laid_out(layout, 1, [stride] * sides, 1),
        "padding": padding,
        "data_format": layout,
        "dilations": _laid_out(layout, 1, [dilation] * sides, 1),
    }
    if padding == "EXPLICIT":
        attributes["explicit_paddings"] = [
            *itertools.chain(*_laid_out(layout, (0, 0), [(2, 1)] * sides, (0, 0)))
        ]
    op, end = (
        ("DepthwiseConv2dNative", "")
        if depthwise
        else (f"Conv{sides}D", "V2" if sides == 3 else "")
    )
    yield Case(op, attributes, (x, taps))
    yield Case(f"{op}BackpropInput{end}", attributes, (np.array(x, np.int32), taps, y))
    yield Case(f"{op}BackpropFilter{end}", attributes, (x, np.array(taps, np.int32), y))
    if padding != "EXPLICIT" or op == "Conv2D":
        for steps in (["BiasAdd"], ["BiasAdd", "Relu"]):
            fused = {**attributes, "num_args": 1, "fused_ops": steps}
            yield Case(
                f"_Fused{op}",
                fused | ({"TArgs": ["T"]} if op == "Conv2D" else {}),
                (x, taps, (_OUT,)),
            )


def _matrices() -> Iterator[Case]:
    for left, right in itertools.product((False, True), repeat=2):
        a = (7, 5) if left else (5, 7)
        b = (6, 7) if right else (7, 6)
        transposed = {"transpose_a": left, "transpose_b": right}
        adjoint = {"adj_x": left, "adj_y": right}
        yield Case("MatMul", transposed, (a, b))
        for steps in (
            ["BiasAdd"],
            *(["BiasAdd", name] for name in ("Relu", "Tanh", "LeakyRelu", "GeluExact")),
        ):
            yield Case(
                "_FusedMatMul", {**transposed, "num_args": 1, "fused_ops": steps}, (a, b, (6,))
            )
        yield Case(
            "_FusedMatMul",
            {**transposed, "num_args": 2, "fused_ops": ["BiasAdd", "Add"]},
            (a, b, (6,), (5, 6)),
        )
        yield Case("BatchMatMul", adjoint, ((2, 3, *a), (2, 3, *b)))
        for batch, other in (((3,), (3,)), ((2, 3), (1, 3)), ((3,), ()), ((2, 1, 3), (4, 1))):
            yield Case("BatchMatMulV2", adjoint, ((*batch, *a), (*other, *b)))
    for equation, *shapes in (
        ("ij,jk->ik", (5, 7), (7, 6)),
        ("bij,bjk->bik", (2, 5, 7), (2, 7, 6)),
        ("ij,kj->ki", (5, 7), (6, 7)),
        ("...ij,...jk->...ik", (2, 1, 5, 7), (3, 7, 6)),
        ("bi,bj->bij", (2, 5), (2, 7)),
        ("ii,ij->j", (5, 5), (5, 7)),
        ("ij->", (5, 7)),
        ("bshd,bthd->bhst", (2, 3, 4, 5), (2, 6, 4, 5)),
    ):
        yield Case("Einsum", {"equation": equation, "N": len(shapes)}, shapes)


def _pools() -> Iterator[Case]:
    for sides, padding, stride, window in itertools.product(
        (2, 3), ("SAME", "VALID"), (1, 2), (2, 3)
    ):
        for layout in _layouts(sides):
            end = "3D" if sides == 3 else ""
            x = tuple(_laid_out(layout, 2, [_SIDE] * sides, 4))
            y = tuple(_laid_out(layout, 2, [_size_after(window, stride, 1, padding)] * sides, 4))
            ksize, strides = (_laid_out(layout, 1, [size] * sides, 1) for size in (window, stride))
            common = {"padding": padding, "data_format": layout}
            attributes = {**common, "ksize": ksize, "strides": strides}
            yield Case(f"AvgPool{end}", attributes, (x,))
            yield Case(f"AvgPool{end}Grad", attributes, (np.array(x, np.int32), y))
            yield Case(f"MaxPool{end}", attributes, (x,))
            yield Case(f"MaxPool{end}Grad", attributes, (x, y), f"MaxPool{end}")
            yield Case(f"MaxPool{end}GradGrad", attributes, (x, x), f"MaxPool{end}")
            if sides == 2:
                sizes = np.array(ksize, np.int32), np.array(strides, np.int32)
                yield Case("MaxPoolV2", common, (x, *sizes))


def _normalizations() -> Iterator[Case]:
    for sides, is_training in itertools.product((2, 3), (True, False)):
        for layout in _layouts(sides):
            x = tuple(_laid_out(layout, 2, [4] * sides, 4))
            attributes = {"data_format": layout, "is_training": is_training, "epsilon": 0.001}
            yield Case("FusedBatchNormV3", attributes, (x, *[(4,)] * 4))
            yield Case("FusedBatchNormGradV3", attributes, (x, x, *[(4,)] * 4))
            if sides == 2:
                yield Case("FusedBatchNormV2", attributes, (x, *[(4,)] * 4))
                yield Case("FusedBatchNormGradV2", attributes, (x, x, *[(4,)] * 3))
                yield Case(
                    "_FusedBatchNormEx", attributes | {"activation_mode": "Relu"}, (x, *[(4,)] * 4)
                )
    yield Case("_MklSwish", {}, ((4, 5),))


def _recurrent() -> Iterator[Case]:
    batch = 2
    size = 3
    cells = 4
    steps = 5
    state = (batch, cells)
    weights = ((size + cells, 4 * cells), *[(cells,)] * 3, (4 * cells,))
    for peephole, clip in itertools.product((False, True), (-1.0, 3.0)):
        of_gradient = {"use_peephole": peephole}
        attributes = {**of_gradient, "cell_clip": clip}
        cell = ((batch, size), state, state, *weights)
        block = (np.array(steps, np.int64), (steps, batch, size), state, state, *weights)
        yield Case("LSTMBlockCell", attributes, cell)
        yield Case("LSTMBlockCellGrad", of_gradient, (*cell, *[state] * 8))
        for end in ("", "V2"):
            yield Case(f"BlockLSTM{end}", attributes, block)
            yield Case(f"BlockLSTMGrad{end}", of_gradient, (*block, *[(steps, *state)] * 9))


def channels(case: Case) -> tuple[int, int]:
    """The channels of the image of a convolution's gradient, and those that its filter reads."""
    image, taps = (
        given if isinstance(given, tuple) else (*given.tolist(),) for given in case.inputs[:2]
    )
    return (image[-1], taps[-2]) if len(image) == len(taps) else (-1, -1)


def type_attributes(case: Case, wanted: int) -> dict[str, list[int]]:
    """The types of a node whose data has a type."""
    return {
        attr.name: [wanted] * len(case.attributes.get(attr.name, " "))
        if attr.name in ("T", "TArgs", "TInput", "dtype")
        else [attr.default_value.type or (_FLOAT if attr.name == "U" else _INT32)]
        for attr in op_def_registry.get(case.op).attr
        if attr.type in ("type", "list(type)")
    }


def node_attributes(case: Case, wanted: int) -> Mapping[str, Any]:
    """The attributes of a node whose data has a type, as AttrValues."""
    proto = graph_pb2.GraphDef().node.add()
    types = type_attributes(case, wanted)
    for attr in op_def_registry.get(case.op).attr:
        value = proto.attr[attr.name]
        given = case.attributes.get(attr.name)
        is_list = attr.type.startswith("list(")
        kind = attr.type.removeprefix("list(").rstrip(")")
        if kind == "type" and is_list:
            value.list.type.extend(types[attr.name])
        elif kind == "type":
            value.type = types[attr.name][0]
        elif given is None:
            value.CopyFrom(attr.default_value)
        elif is_list:
            items = [item.encode() if isinstance(item, str) else item for item in given]
            getattr(value.list, kind[0]).extend(items)
        else:
            setattr(value, kind[0], given.encode() if isinstance(given, str) else given)
    return proto.attr


def _add_function(graph: Any, name: str, case: Case, wanted: int) -> None:
    """A function of the node and casts."""
    definition = op_def_registry.get(case.op)
    types = type_attributes(case, wanted)
    function = graph.library.function.add()
    function.signature.name = name
    node = function.node_def.add(name="node", op=case.op, device="/device:CPU:0")
    for attr, value in node_attributes(case, wanted).items():
        node.attr[attr].CopyFrom(value)

    def cast(name: str, source: str, data_types: tuple[int, int]) -> str:
        if data_types[0] == data_types[1]:
            return source
        made = function.node_def.add(name=name, op="Cast", input=[source])
        made.attr["SrcT"].type, made.attr["DstT"].type = data_types
        return f"{name}:y:0"

    numbers: list[int] = []
    for arg in definition.input_arg:
        of_type = types.get(arg.type_list_attr) or types.get(arg.type_attr) or [arg.type]
        count = node.attr[arg.number_attr].i if arg.number_attr else 1
        numbers += (
            of_type
            if arg.type_list_attr and case.attributes.get(arg.type_list_attr)
            else of_type * count
        )
    for position, value in enumerate(case.values):
        argument = function.signature.input_arg.add(
            name=f"a{position}", type=tf.as_dtype(value.dtype).as_datatype_enum
        )
        node.input.append(argument.name)
        if argument.type == _FLOAT:
            node.input[position] = cast(f"c{position}", argument.name, (_FLOAT, numbers[position]))
    if case.behind:
        forward = function.node_def.add(
            name="forward", op=case.behind, input=node.input[:1], attr=node.attr
        )
        for attr in set(forward.attr) - {
            attr.name for attr in op_def_registry.get(case.behind).attr
        }:
            del forward.attr[attr]
        node.input.insert(1, "forward:output:0")
    result = definition.output_arg[0]
    of_result = (types.get(result.type_attr) or [result.type])[0]
    function.ret["r"] = cast("back", f"node:{result.name}:0", (of_result, _FLOAT))
    function.signature.output_arg.add(name="r", type=_FLOAT)


def run(all_cases: Sequence[Case]) -> list[dict[str, str]]:
    """For each case, what its kernel does in each 16-bit type: one of the outcomes, what was
    refused with its words.
    """
    if len(all_cases) > _TOGETHER:
        return run(all_cases[:_TOGETHER]) + run(all_cases[_TOGETHER:])
    graph_def = graph_pb2.GraphDef()
    quiet = config_pb2.ConfigProto()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    quiet.graph_options.rewrite_options.disable_meta_optimizer = True
    for number, case in enumerate(all_cases):
        names = []
        for position, value in enumerate(case.values):
            node = graph_def.node.add(name=f"{number}_{position}", op="Const")
            node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
            names.append(node.name)
        for name in ("float32", *TYPES):
            _add_function(graph_def, f"f_{number}_{name}", case, tf.as_dtype(name).as_datatype_enum)
            call = graph_def.node.add(name=f"{number}_{name}", op="PartitionedCall", input=names)
            call.attr["f"].func.name = f"f_{number}_{name}"
            call.attr["Tin"].list.type.extend(
                tf.as_dtype(value.dtype).as_datatype_enum for value in case.values
            )
            call.attr["Tout"].list.type.append(_FLOAT)
            call.attr["config_proto"].s = quiet.SerializeToString()
    with (
        tf.Graph().as_default() as graph,
        tf.compat.v1.Session(graph=graph, config=quiet) as session,
    ):
        tf.graph_util.import_graph_def(graph_def, name="")
        return [_outcomes(session, number, case) for number, case in enumerate(all_cases)]


def _outcomes(session: Any, number: int, case: Case) -> dict[str, str]:
    """Returns a case's outcome by type, with equal values in 16 bit, which change a gradient's
    maximum.
    """
    tolerance = math.inf if case.behind or case.op == _WRONG else _TOLERANCE
    try:
        expected = session.run(f"{number}_float32:0")
    except tf.errors.OpError:
        return dict.fromkeys(TYPES, FAILS_IN_FLOAT32)
    found = {}
    for name in TYPES:
        try:
            difference = np.linalg.norm(session.run(f"{number}_{name}:0") - expected)
            found[name] = RUNS if difference <= tolerance * np.linalg.norm(expected) else DIFFERS
        except tf.errors.OpError as error:
            found[name] = f"{REFUSES}: {' '.join(str(error).split())}"
    return found


if __name__ == "__main__":
    made = cases()
    outcomes = run(made)
    if sys.argv[1:] == ["--json"]:
        by_onednn = [name for name in TYPES if onednn.computes(tf.as_dtype(name).as_datatype_enum)]
        print(json.dumps({"onednn": by_onednn, "outcomes": outcomes}))
        raise SystemExit
    for case, of_case in zip(made, outcomes, strict=True):
        for name, outcome in of_case.items():
            if outcome not in (RUNS, FAILS_IN_FLOAT32):
                print(name, case, outcome, sep=" | ")
