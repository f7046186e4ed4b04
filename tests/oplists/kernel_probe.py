"""Runs this CPU's kernels over the attributes of their ops: which do 16-bit ones refuse?

``python -m tests.oplists.kernel_probe`` prints JSON for the tests: oneDNN's types, and the outcomes
of all cases.

Each case is a function of one node between casts. TensorFlow checks the nodes of a function by
their kernels alone, those of a graph by their op's definition too, which for _FusedConv2D lists
less.
"""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

from tests import small_graphs
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
_numbers = itertools.count()

Input = tuple[int, ...] | Any  #: the shape of a tensor of floats, or an array of whole numbers


class Case(NamedTuple):
    """A node: what it reads, and its attributes but for its types.

    Attributes:
        op: its op.
        inputs: what it reads.
        attributes: as :mod:`tests.small_graphs` writes them.
        behind: the op, with the same attributes, that makes its second input of its first; empty
            for none.
    """

    op: str
    inputs: Sequence[Input]
    attributes: str = ""
    behind: str = ""

    def __str__(self):
        shapes = [given if isinstance(given, tuple) else given.tolist() for given in self.inputs]
        return f"{self.op}({', '.join(map(str, shapes))}) {self.attributes}"

    @property
    def values(self):
        """Makes the inputs, the same numbers in every process."""
        random = np.random.default_rng(zlib.crc32(str(self).encode()))
        values = []
        for given in self.inputs:
            is_shape = isinstance(given, tuple)
            values.append(np.asarray(random.random(given, np.float32) if is_shape else given))
        return values


def cases():
    """All cases whose op this TensorFlow has."""
    made = (_convolutions(), _matrices(), _einsums(), _pools(), _normalizations(), _recurrent())
    return [case for case in itertools.chain(*made) if op_def_registry.get(case.op) is not None]


def _written(**attributes):
    """Writes attributes as text."""
    parts = []
    for name, value in attributes.items():
        text = repr(value)
        if isinstance(value, bool):
            text = text.lower()
        parts.append(f"{name}={text}")
    return " ".join(parts)


def _laid_out(layout, batch, sides, channels):
    if layout.startswith("NC"):
        return [batch, channels, *sides]
    return [batch, *sides, channels]


def _layouts(dimensions):
    return ("NHWC", "NCHW") if dimensions == 2 else ("NDHWC", "NCDHW")


def _size_after(taps, stride, dilation, padding):
    if padding == "SAME":
        return math.ceil(_SIDE / stride)
    padded = _SIDE + (3 if padding == "EXPLICIT" else 0)
    return (padded - (taps - 1) * dilation - 1) // stride + 1


class _Convolution(NamedTuple):
    """How a convolution is asked for."""

    op: str
    layout: str
    padding: str
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    def cases(self):
        """Yields it and its gradients, and it with what is fused with it."""
        sides = len(self.layout) - 2
        after = _size_after(_TAPS, self.stride, self.dilation, self.padding)
        x = tuple(_laid_out(self.layout, 2, [_SIDE] * sides, _CHANNELS))
        y = tuple(_laid_out(self.layout, 2, [after] * sides, _OUT))
        channels = (_CHANNELS // self.groups, _OUT)
        if self.op.startswith("Depthwise"):
            channels = (_CHANNELS, _OUT // _CHANNELS)
        taps = (*[_TAPS] * sides, *channels)
        strides = _laid_out(self.layout, 1, [self.stride] * sides, 1)
        dilations = _laid_out(self.layout, 1, [self.dilation] * sides, 1)
        attributes = _written(
            strides=strides, padding=self.padding, data_format=self.layout, dilations=dilations
        )
        if self.padding == "EXPLICIT":
            pads = _laid_out(self.layout, (0, 0), [(2, 1)] * sides, (0, 0))
            flat = list(itertools.chain(*pads))
            attributes += " " + _written(explicit_paddings=flat)
        end = "V2" if self.op == "Conv3D" else ""
        yield Case(self.op, (x, taps), attributes)
        yield Case(f"{self.op}BackpropInput{end}", (np.int32(x), taps, y), attributes)
        yield Case(f"{self.op}BackpropFilter{end}", (x, np.int32(taps), y), attributes)
        if self.padding != "EXPLICIT" or self.op == "Conv2D":
            inputs = (x, taps, (_OUT,))
            for steps in (["BiasAdd"], ["BiasAdd", "Relu"]):
                fused = _written(num_args=1, fused_ops=steps)
                yield Case(f"_Fused{self.op}", inputs, f"{attributes} {fused}")


def _convolutions():
    of_images = ("SAME", "VALID", "EXPLICIT")
    for op, sides, paddings, groups in (
        ("Conv2D", 2, of_images, (1, 2)),
        ("DepthwiseConv2dNative", 2, of_images, (1,)),
        ("Conv3D", 3, ("SAME", "VALID"), (1,)),
    ):
        layouts = _layouts(sides)
        for layout, padding in itertools.product(layouts, paddings):
            for dilation, group in itertools.product((1, 2), groups):
                yield from _Convolution(op, layout, padding, 1, dilation, group).cases()
        yield from _Convolution(op, layouts[0], "SAME", stride=2).cases()
    pads = np.array([[0, 0], [1, 1], [2, 1], [0, 0]], np.int32)
    inputs = ((2, _SIDE, _SIDE, 4), pads, (3, 3, 4, 8))
    for mode, padding in itertools.product(("REFLECT", "SYMMETRIC"), ("SAME", "VALID")):
        for stride in (1, 2):
            strides = [1, stride, stride, 1]
            attributes = _written(mode=mode, padding=padding, strides=strides)
            yield Case("FusedPadConv2D", inputs, attributes)


def _matrices():
    activations = ("Relu", "Tanh", "LeakyRelu", "GeluExact")
    for is_left_turned, is_right_turned in itertools.product((False, True), repeat=2):
        a = (7, 5) if is_left_turned else (5, 7)
        b = (6, 7) if is_right_turned else (7, 6)
        transposed = _written(transpose_a=is_left_turned, transpose_b=is_right_turned)
        adjoint = _written(adj_x=is_left_turned, adj_y=is_right_turned)
        yield Case("MatMul", (a, b), transposed)
        for steps in (["BiasAdd"], *(["BiasAdd", name] for name in activations)):
            fused = _written(num_args=1, fused_ops=steps)
            yield Case("_FusedMatMul", (a, b, (6,)), f"{transposed} {fused}")
        added = _written(num_args=2, fused_ops=["BiasAdd", "Add"])
        yield Case("_FusedMatMul", (a, b, (6,), (5, 6)), f"{transposed} {added}")
        yield Case("BatchMatMul", ((2, 3, *a), (2, 3, *b)), adjoint)
        for batch, other in (((3,), (3,)), ((2, 3), (1, 3)), ((3,), ()), ((2, 1, 3), (4, 1))):
            yield Case("BatchMatMulV2", ((*batch, *a), (*other, *b)), adjoint)


def _einsums():
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
        yield Case("Einsum", shapes, _written(equation=equation, N=len(shapes)))


def _pools():
    for sides, padding in itertools.product((2, 3), ("SAME", "VALID")):
        for layout, (stride, window) in itertools.product(_layouts(sides), ((1, 3), (2, 2))):
            end = "3D" if sides == 3 else ""
            after = _size_after(window, stride, 1, padding)
            x = tuple(_laid_out(layout, 2, [_SIDE] * sides, 4))
            y = tuple(_laid_out(layout, 2, [after] * sides, 4))
            ksize = _laid_out(layout, 1, [window] * sides, 1)
            strides = _laid_out(layout, 1, [stride] * sides, 1)
            common = _written(padding=padding, data_format=layout)
            attributes = f"{common} {_written(ksize=ksize, strides=strides)}"
            yield Case(f"AvgPool{end}", (x,), attributes)
            yield Case(f"AvgPool{end}Grad", (np.int32(x), y), attributes)
            yield Case(f"MaxPool{end}", (x,), attributes)
            yield Case(f"MaxPool{end}Grad", (x, y), attributes, f"MaxPool{end}")
            yield Case(f"MaxPool{end}GradGrad", (x, x), attributes, f"MaxPool{end}")
            if sides == 2:
                yield Case("MaxPoolV2", (x, np.int32(ksize), np.int32(strides)), common)


def _normalizations():
    for sides, is_training in itertools.product((2, 3), (True, False)):
        for layout in _layouts(sides):
            x = tuple(_laid_out(layout, 2, [4] * sides, 4))
            attributes = _written(data_format=layout, is_training=is_training, epsilon=0.001)
            statistics = [(4,)] * 4
            inputs = (x, *statistics)
            yield Case("FusedBatchNormV3", inputs, attributes)
            yield Case("FusedBatchNormGradV3", (x, *inputs), attributes)
            if sides == 2:
                yield Case("FusedBatchNormV2", inputs, attributes)
                yield Case("FusedBatchNormGradV2", (x, x, *statistics[1:]), attributes)
                fused = f"{attributes} activation_mode='Relu'"
                yield Case("_FusedBatchNormEx", inputs, fused)
    yield Case("_MklSwish", ((4, 5),))


def _recurrent():
    batch = 2
    size = 3
    cells = 4
    steps = 5
    state = (batch, cells)
    gates = 4 * cells
    peepholes = [(cells,)] * 3
    weights = ((size + cells, gates), *peepholes, (gates,))
    cell = ((batch, size), state, state, *weights)
    length = np.array(steps, np.int64)
    block = (length, (steps, batch, size), state, state, *weights)
    results = [(steps, *state)] * 9
    for peephole, clip in itertools.product((False, True), (-1.0, 3.0)):
        of_gradient = _written(use_peephole=peephole)
        attributes = f"{of_gradient} {_written(cell_clip=clip)}"
        yield Case("LSTMBlockCell", cell, attributes)
        yield Case("LSTMBlockCellGrad", (*cell, *[state] * 8), of_gradient)
        for end in ("", "V2"):
            yield Case(f"BlockLSTM{end}", block, attributes)
            yield Case(f"BlockLSTMGrad{end}", (*block, *results), of_gradient)


def type_attributes(case, wanted):
    """The types of a node whose data has a type."""
    types = {}
    for attr in op_def_registry.get(case.op).attr:
        if attr.name in ("T", "TArgs", "TInput", "dtype"):
            types[attr.name] = [wanted]
        elif attr.type == "type":
            number = _FLOAT if attr.name == "U" else _INT32
            types[attr.name] = [attr.default_value.type or number]
    return types


def node_attributes(case, wanted):
    """The attributes of a node whose data has a type, as AttrValues."""
    return small_graphs.node(_line(case, wanted)).attr


def _line(case, wanted, inputs=(), name="node"):
    """The line of a node whose data has a type."""
    parts = [f"{name} = {case.op}({', '.join(inputs)})", case.attributes, "@/device:CPU:0"]
    for attr, (number,) in type_attributes(case, wanted).items():
        text = _name(number)
        if attr == "TArgs":  # a list
            text = f"[{text}]"
        parts.append(f"{attr}={text}")
    return " ".join(parts)


def _name(number):
    return tf.as_dtype(number).name


def _input_types(case, wanted):
    """The types of what a node reads, list by list."""
    node = small_graphs.node(_line(case, wanted))
    found = []
    for arg in op_def_registry.get(case.op).input_arg:
        found += small_graphs.arg_types(node, arg)
    return found


def _function(name, case, wanted):
    """A function of the node and casts."""
    lines = []
    arguments = []
    inputs = []
    types = _input_types(case, wanted)
    if case.behind:
        types[1:2] = []
    for position, value in enumerate(case.values):
        arguments.append(f"a{position}: {value.dtype.name}")
        inputs.append(f"a{position}")
        if value.dtype == np.float32 and types[position] != _FLOAT:
            target = _name(types[position])
            lines.append(f"c{position} = Cast(a{position}) SrcT=float32 DstT={target}")
            inputs[position] = f"c{position}:y:0"
    if case.behind:
        forward = case._replace(op=case.behind)
        lines.append(_line(forward, wanted, inputs[:1], "forward"))
        inputs.insert(1, "forward:output:0")
    lines.append(_line(case, wanted, inputs))
    (result, *_) = op_def_registry.get(case.op).output_arg
    (of_result,) = type_attributes(case, wanted).get(result.type_attr, [result.type])
    tensor = f"node:{result.name}:0"
    if of_result != _FLOAT:
        lines.append(f"back = Cast({tensor}) SrcT={_name(of_result)} DstT=float32")
        tensor = "back:y:0"
    lines.insert(0, f"function {name}({', '.join(arguments)}) -> (r: float32)")
    lines.append(f"return r = {tensor}")
    return small_graphs.function("\n".join(lines))


def outcomes_of(case):
    """By type, what a case's kernel does: one of the outcomes, and what was refused in its words.

    Equal values in 16 bit change a gradient's maximum, so it may differ.
    """
    tolerance = _TOLERANCE
    if case.behind or case.op == _WRONG:
        tolerance = math.inf
    try:
        expected = _computed(case, "float32")
    except tf.errors.OpError:
        return dict.fromkeys(TYPES, FAILS_IN_FLOAT32)
    found = {}
    for kind in TYPES:
        try:
            difference = np.linalg.norm(_computed(case, kind) - expected)
        except tf.errors.OpError as error:
            found[kind] = f"{REFUSES}: {' '.join(str(error).split())}"
            continue
        is_near = difference <= tolerance * np.linalg.norm(expected)
        found[kind] = RUNS if is_near else DIFFERS
    return found


def _computed(case, kind):
    """The result of a case in a type, by a function that Grappler leaves as it is.

    Raises:
        tf.errors.OpError: the kernel refuses it.
    """
    name = f"case_{next(_numbers)}"
    eager = context.context()
    number = tf.as_dtype(kind).as_datatype_enum
    eager.add_function_def(_function(name, case, number))
    values = list(map(tf.constant, case.values))
    (result,) = eager.call_function(name.encode(), values, 1)
    return result.numpy()


if __name__ == "__main__":
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    by_onednn = []
    for name in TYPES:
        if onednn.computes(tf.as_dtype(name).as_datatype_enum):
            by_onednn.append(name)
    outcomes = list(map(outcomes_of, cases()))
    print(json.dumps({"onednn": by_onednn, "outcomes": outcomes}))
