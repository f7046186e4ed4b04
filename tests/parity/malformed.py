"""Broken graphs: a good graph with one or two things wrong, and what amp_tf may do with it."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2

import amp_tf
from tests.oracle import Knobs, Mode
from tests.parity.comparison import config_for, rewired, type_errors

LIMIT_SECONDS = 5.0
GraphDef = graph_pb2.GraphDef
Random = random.Random


@dataclasses.dataclass(frozen=True)
class MalformedVerdict:
    """What happened to a broken graph, and the problem if that was not allowed."""

    kind: str
    problem: str = ""


def judge_malformed(broken: GraphDef, preserve: Sequence[str], mode: Mode, knobs: Knobs) -> MalformedVerdict:
    """Rewrites the graph. Allowed are a GraphError that says where, and a result with the wires of the input."""
    before = broken.SerializeToString(deterministic=True)
    start = time.perf_counter()
    try:
        with _time_limit():
            result = amp_tf.rewrite(broken, config_for(mode, knobs), preserve=tuple(preserve))
    except amp_tf.GraphError as error:
        verdict = MalformedVerdict("GraphError", "" if error.where and error.what else f"says too little: {error}")
    except TimeoutError:
        verdict = MalformedVerdict("hang", "no answer in time")
    except Exception as error:  # the point is to find whatever escapes
        verdict = MalformedVerdict("crash", f"{type(error).__name__}: {error}")
    else:
        verdict = MalformedVerdict("rewritten" if result.changed else "unchanged", _broken_wires(broken, result.graph))
    if broken.SerializeToString(deterministic=True) != before:
        return MalformedVerdict(verdict.kind, "the input was modified")
    if time.perf_counter() - start > LIMIT_SECONDS:
        return MalformedVerdict(verdict.kind, "too slow")
    return verdict


def mutated(graph_def: GraphDef, dice: Random) -> tuple[GraphDef | None, str]:
    """The graph with one or two things wrong, and their names; ``None`` where protobuf itself refuses the bytes."""
    broken = GraphDef()
    broken.CopyFrom(graph_def)
    names = []
    for _ in range(1 + dice.randrange(2)):
        mutation = dice.choice(MUTATIONS)
        names.append(mutation.__name__)
        try:
            broken = mutation(broken, dice) or broken
        except DecodeError:
            return None, " and ".join(names)
        if not broken.node:
            break
    return broken, " and ".join(names)


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 2 * LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _broken_wires(broken: GraphDef, result: GraphDef) -> str:
    names = [node.name for node in broken.node]
    if len(set(names)) != len(names):
        return "" if result == broken else "names twice, and yet changed"
    errors = [] if type_errors(broken) else type_errors(result)
    return "; ".join([*rewired(broken, result), *errors])


# Mutations. Each changes the graph in place or returns another one.


def truncated_bytes(graph: GraphDef, dice: Random) -> GraphDef:
    data = graph.SerializeToString()
    return GraphDef.FromString(data[: dice.randrange(len(data) + 1)])


def flipped_bytes(graph: GraphDef, dice: Random) -> GraphDef:
    data = bytearray(graph.SerializeToString())
    for _ in range(1 + dice.randrange(4)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return GraphDef.FromString(bytes(data))


def node_gone(graph: GraphDef, dice: Random) -> None:
    del graph.node[dice.randrange(len(graph.node))]


def node_twice(graph: GraphDef, dice: Random) -> None:
    graph.node.add().CopyFrom(dice.choice(graph.node))


def empty_name(graph: GraphDef, dice: Random) -> None:
    dice.choice(graph.node).name = dice.choice(("", "^", ":", "a:0", "^a", " "))


def unknown_op(graph: GraphDef, dice: Random) -> None:
    dice.choice(graph.node).op = dice.choice(("", "NoSuchOp", "matmul", "Func\x00"))


def another_op(graph: GraphDef, dice: Random) -> None:
    dice.choice(graph.node).op = dice.choice(graph.node).op


def input_gone(graph: GraphDef, dice: Random) -> None:
    node = _with_inputs(graph, dice)
    if node:
        del node.input[dice.randrange(len(node.input))]


def input_too_many(graph: GraphDef, dice: Random) -> None:
    dice.choice(graph.node).input.append(dice.choice(graph.node).name)


def input_elsewhere(graph: GraphDef, dice: Random) -> None:
    """A wire from another node: types may disagree, and cycles arise."""
    node = _with_inputs(graph, dice)
    if node:
        node.input[dice.randrange(len(node.input))] = dice.choice(graph.node).name


def input_nonsense(graph: GraphDef, dice: Random) -> None:
    node = _with_inputs(graph, dice)
    if node:
        texts = ("", "^", ":", "nowhere", "nowhere:1", "^nowhere", ":0", "a:b:c", "a:-1", f"{node.name}:999999999999")
        node.input[dice.randrange(len(node.input))] = dice.choice(texts)


def port_out_of_range(graph: GraphDef, dice: Random) -> None:
    node = _with_inputs(graph, dice)
    if node:
        index = dice.randrange(len(node.input))
        source = node.input[index].partition(":")[0]
        node.input[index] = f"{source}:{dice.choice((7, 99, -1, 2**31, 2**63))}"


def control_before_data(graph: GraphDef, dice: Random) -> None:
    node = _with_inputs(graph, dice)
    if node:
        node.input.insert(0, f"^{dice.choice(graph.node).name}")


def attribute_gone(graph: GraphDef, dice: Random) -> None:
    node = _with_attributes(graph, dice)
    if node:
        del node.attr[dice.choice(sorted(node.attr))]


def attribute_of_another_kind(graph: GraphDef, dice: Random) -> None:
    node = _with_attributes(graph, dice)
    if node:
        value = node.attr[dice.choice(sorted(node.attr))]
        kind = dice.choice(("type", "list", "i", "s", "func", "placeholder", "nothing"))
        value.Clear()
        if kind == "type":
            value.type = 1
        elif kind == "list":
            value.list.type.extend([1] * dice.randrange(4))
        elif kind == "i":
            value.i = dice.choice((-1, 0, 1, 2**31, 2**62))
        elif kind == "s":
            value.s = b"\xff"
        elif kind == "func":
            value.func.name = dice.choice(("", "nowhere"))
        elif kind == "placeholder":
            value.placeholder = "T"


def attribute_unknown(graph: GraphDef, dice: Random) -> None:
    dice.choice(graph.node).attr[dice.choice(("nonsense", "", "_private"))].type = 1


def type_of_another_kind(graph: GraphDef, dice: Random) -> None:
    node = _with_attributes(graph, dice)
    if node:
        for value in node.attr.values():
            if value.WhichOneof("value") == "type":
                value.type = dice.choice((0, 3, 14, 19, 21, 101, 77, 2**31 - 1))


def count_absurd(graph: GraphDef, dice: Random) -> None:
    numbered = [node for node in graph.node if "N" in node.attr]
    if numbered:
        dice.choice(numbered).attr["N"].i = dice.choice((-1, 0, 1, 1000, 2**31, 2**62))


def device_nonsense(graph: GraphDef, dice: Random) -> None:
    dice.choice(graph.node).device = dice.choice(("x", "/", "/device:", "/device:GPU:99", "/job:a/device:XYZ:0", ":::"))


def loop_frame_gone(graph: GraphDef, dice: Random) -> None:
    enters = [node for node in graph.node if node.op == "Enter"]
    if enters:
        dice.choice(enters).attr["frame_name"].Clear()


def next_iteration_read_elsewhere(graph: GraphDef, dice: Random) -> None:
    loops = [node for node in graph.node if node.op == "NextIteration"]
    readers = [node for node in graph.node if node.input and node.op != "Merge"]
    if loops and readers:
        dice.choice(readers).input[0] = dice.choice(loops).name


def function_broken(graph: GraphDef, dice: Random) -> None:
    """A function whose body reads what is not there, called by a node."""
    function = graph.library.function.add()
    function.signature.name = "broken"
    function.signature.input_arg.add(name="x", type=1)
    function.signature.output_arg.add(name="y", type=1)
    node = function.node_def.add(name="m", op=dice.choice(("MatMul", "NoSuchOp")))
    node.input.extend(dice.choice((["x", "x"], ["x"], ["nowhere:out:0", "x"], ["x:y:0", "x"])))
    node.attr["T"].type = 1
    function.ret["y"] = dice.choice(("m:product:0", "m:nothing:0", "nowhere", ""))
    call = graph.node.add(name="call", op=dice.choice(("broken", "PartitionedCall")), input=[graph.node[0].name])
    if call.op == "PartitionedCall":
        call.attr["f"].func.name = dice.choice(("broken", "nowhere"))
        call.attr["Tin"].list.type.append(1)
        call.attr["Tout"].list.type.append(1)


MUTATIONS: tuple[Callable[[GraphDef, Random], GraphDef | None], ...] = (
    truncated_bytes,
    flipped_bytes,
    node_gone,
    node_twice,
    empty_name,
    unknown_op,
    another_op,
    input_gone,
    input_too_many,
    input_elsewhere,
    input_nonsense,
    port_out_of_range,
    control_before_data,
    attribute_gone,
    attribute_of_another_kind,
    attribute_unknown,
    type_of_another_kind,
    count_absurd,
    device_nonsense,
    loop_frame_gone,
    next_iteration_read_elsewhere,
    function_broken,
)


def _with_inputs(graph: GraphDef, dice: Random):
    nodes = [node for node in graph.node if node.input]
    return dice.choice(nodes) if nodes else None


def _with_attributes(graph: GraphDef, dice: Random):
    nodes = [node for node in graph.node if node.attr]
    return dice.choice(nodes) if nodes else None
