"""Broken graphs: a good graph with one or two things wrong, and what amp_tf may do with it."""

from __future__ import annotations

import contextlib
import random
import signal
from typing import NamedTuple

from google.protobuf.message import DecodeError
from tensorflow.core.framework import attr_value_pb2, graph_pb2

import amp_tf
from tests.parity.comparison import config_for, rewired, type_errors

LIMIT_SECONDS = 10
GraphDef = graph_pb2.GraphDef
AttrValue = attr_value_pb2.AttrValue
Random = random.Random
#: Values that may take an attribute's place.
VALUES = (
    AttrValue(),
    AttrValue(type=1),
    AttrValue(s=b"\xff"),
    AttrValue(placeholder="T"),
    AttrValue(func={"name": "none"}),
    *(AttrValue(list={"type": [1] * count}) for count in range(4)),
    *(AttrValue(i=number) for number in (-1, 0, 1, 2**31, 2**62)),
)


class MalformedVerdict(NamedTuple):
    """The outcome of a broken graph, and the problem if it was not allowed."""

    kind: str
    problem: str = ""


def judge_malformed(broken, preserve, mode, knobs):
    """Rewrites the graph.

    Allowed are a GraphError that says where, and a result with the wires of the input.
    """
    before = broken.SerializeToString(deterministic=True)
    try:
        with _time_limit():
            result = amp_tf.rewrite(broken, config_for(mode, knobs), preserve=tuple(preserve))
    except amp_tf.GraphError as error:
        verdict = MalformedVerdict(
            "GraphError", "" if error.where and error.what else f"says too little: {error}"
        )
    except TimeoutError:
        verdict = MalformedVerdict("hang", "no answer in time")
    except Exception as error:  # the point is to find whatever escapes
        verdict = MalformedVerdict("crash", f"{type(error).__name__}: {error}")
    else:
        verdict = MalformedVerdict(
            "rewritten" if result.changed else "unchanged", _broken_wires(broken, result.graph)
        )
    if broken.SerializeToString(deterministic=True) != before:
        return MalformedVerdict(verdict.kind, "the input was modified")
    return verdict


def mutated(graph_def, dice):
    """The graph with one or two things wrong, and their names; ``None`` where protobuf itself
    refuses the bytes.
    """
    broken = GraphDef()
    broken.CopyFrom(graph_def)
    names = []
    for _ in range(1 + dice.randrange(2)):
        names.append(dice.choice([*OF_GRAPHS, *OF_NODES]))
        try:
            if names[-1] in OF_GRAPHS:
                broken = OF_GRAPHS[names[-1]](broken, dice) or broken
            else:
                OF_NODES[names[-1]](dice.choice(broken.node), broken, dice)
        except DecodeError:
            return None, " and ".join(names)
        if not broken.node:
            break
    return broken, " and ".join(names)


@contextlib.contextmanager
def _time_limit():
    def give_up(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _broken_wires(broken, result):
    names = [node.name for node in broken.node]
    if len(set(names)) != len(names):
        return "" if result == broken else "names twice, and yet changed"
    errors = [] if type_errors(broken) else type_errors(result)
    return "; ".join([*rewired(broken, result), *errors])


def _other_input(node, dice, *texts):
    """Another text in place of one of a node's inputs, whose own text is put where it has
    braces.
    """
    if node.input:
        index = dice.randrange(len(node.input))
        name, _, _ = node.input[index].partition(":")
        node.input[index] = dice.choice(texts).format(name)


def _other_value(node, dice):
    if node.attr:
        name = dice.choice(sorted(node.attr))
        node.attr[name].CopyFrom(dice.choice(VALUES))


def _other_types(node, dice):
    for value in node.attr.values():
        if value.WhichOneof("value") == "type":
            value.type = dice.choice((0, 3, 14, 19, 21, 101, 77, 2**31 - 1))


NONSENSE = (
    "",
    "^",
    ":",
    "nowhere",
    "nowhere:1",
    "^nowhere",
    ":0",
    "a:b:c",
    "a:-1",
    "{}:999999999999",
)
PORTS = ("{}:7", "{}:99", "{}:-1", f"{{}}:{2**31}", f"{{}}:{2**63}")
DEVICES = ("x", "/", "/device:", "/device:GPU:99", "/job:a/device:XYZ:0", ":::")
#: Changes of a random node.
OF_NODES = {
    "node gone": lambda node, graph, dice: graph.node.remove(node),
    "node twice": lambda node, graph, dice: graph.node.add().CopyFrom(node),
    "empty name": lambda node, graph, dice: setattr(
        node, "name", dice.choice(("", "^", ":", "a:0", "^a", " "))
    ),
    "unknown op": lambda node, graph, dice: setattr(
        node, "op", dice.choice(("", "NoSuchOp", "matmul", "Func\x00"))
    ),
    "another op": lambda node, graph, dice: setattr(node, "op", dice.choice(graph.node).op),
    "input gone": lambda node, graph, dice: (
        node.input and node.input.pop(dice.randrange(len(node.input)))
    ),
    "input too many": lambda node, graph, dice: node.input.append(dice.choice(graph.node).name),
    # types may disagree, and cycles arise
    "input elsewhere": lambda node, graph, dice: _other_input(
        node, dice, dice.choice(graph.node).name
    ),
    "input nonsense": lambda node, graph, dice: _other_input(node, dice, *NONSENSE),
    "port out of range": lambda node, graph, dice: _other_input(node, dice, *PORTS),
    "control before data": lambda node, graph, dice: node.input.insert(
        0, f"^{dice.choice(graph.node).name}"
    ),
    "attribute gone": lambda node, graph, dice: (
        node.attr and node.attr.pop(dice.choice(sorted(node.attr)))
    ),
    "attribute unknown": lambda node, graph, dice: setattr(
        node.attr[dice.choice(("nonsense", "", "_private"))], "type", 1
    ),
    "attribute of another kind": lambda node, graph, dice: _other_value(node, dice),
    "other types": lambda node, graph, dice: _other_types(node, dice),
    "device nonsense": lambda node, graph, dice: setattr(node, "device", dice.choice(DEVICES)),
}


def truncated_bytes(graph, dice):
    data = graph.SerializeToString()
    return GraphDef.FromString(data[: dice.randrange(len(data) + 1)])


def flipped_bytes(graph, dice):
    data = bytearray(graph.SerializeToString())
    for _ in range(1 + dice.randrange(4)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return GraphDef.FromString(bytes(data))


def count_absurd(graph, dice):
    if numbered := [node for node in graph.node if "N" in node.attr]:
        count = dice.choice((-1, 0, 1, 1000, 2**31, 2**62))
        dice.choice(numbered).attr["N"].i = count


def loop_frame_gone(graph, dice):
    if enters := [node for node in graph.node if node.op == "Enter"]:
        dice.choice(enters).attr["frame_name"].Clear()


def next_iteration_read_elsewhere(graph, dice):
    loops = []
    readers = []
    for node in graph.node:
        if node.op == "NextIteration":
            loops.append(node)
        if node.input and node.op != "Merge":
            readers.append(node)
    if loops and readers:
        loop = dice.choice(loops)
        dice.choice(readers).input[0] = loop.name


#: Changes of a graph, each in place or as another graph that it returns.
OF_GRAPHS = {
    function.__name__: function
    for function in (
        truncated_bytes,
        flipped_bytes,
        count_absurd,
        loop_frame_gone,
        next_iteration_read_elsewhere,
    )
}
