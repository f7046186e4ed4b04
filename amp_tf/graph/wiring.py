"""Turns the inputs of nodes into edges between units, by arithmetic on arrays."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from amp_tf.graph.indices import Indices, Node
from amp_tf.graph.view import Edges, Ports, as_integers
from amp_tf.graph.wire import UNKNOWN


class BrokenInputError(Exception):
    """An input that cannot be.

    Attributes:
        node: which node has it.
        what: what is wrong with it.
    """

    def __init__(self, node: Node, what: str) -> None:
        self.node = node
        self.what = what
        super().__init__(node, what)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of all nodes, one after the other.

    Attributes:
        counts: how many each node has, control inputs included.
        sources: of each input, the node that it names; :data:`~amp_tf.graph.wire.CONTROL` for a control input,
            :data:`~amp_tf.graph.wire.UNKNOWN` or less for a name that names nothing.
        ports: of each input, the output port.
    """

    counts: Indices
    sources: Indices
    ports: Indices

    def edges(self, ports: Ports, names: Sequence[str], texts: Callable[[int], Sequence[str]]) -> Edges:
        """The data edges.

        Args:
            ports: those of all nodes.
            names: of all nodes, for messages.
            texts: gives the names of a node's inputs, for messages.

        Raises:
            BrokenInputError: an input names nothing, a port does not exist, a data input comes after a control input,
                or a node has not as many inputs as its op expects.
        """
        readers = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        starts = np.cumsum(self.counts, dtype=np.int32) - self.counts
        self._check_names(readers, starts, texts)
        data = np.flatnonzero(self.sources >= 0)
        src_node, src_port, dst_node = self.sources[data], self.ports[data], readers[data]
        _check_ports(src_node, src_port, dst_node, ports, names)
        _check_arity(np.bincount(dst_node, minlength=len(self.counts)), ports)
        dst_position = (data - starts[dst_node]).astype(np.int32)
        return ports.edges(src_node, src_port, dst_node, dst_position)

    def _check_names(self, readers: Indices, starts: Indices, texts: Callable[[int], Sequence[str]]) -> None:
        sources = self.sources
        unknown = np.flatnonzero(sources <= UNKNOWN)
        if len(unknown):
            node = int(readers[unknown[0]])
            position = int(unknown[0] - starts[node])
            text = texts(node)[position]
            if text[:1] == "^":
                raise BrokenInputError(node, f"control input {text!r} names no node of this graph")
            raise BrokenInputError(node, f"input {position} is {text!r}, which is no tensor of this graph")
        late = np.flatnonzero((sources[:-1] < 0) & (sources[1:] >= 0) & (readers[:-1] == readers[1:])) + 1
        if len(late):
            node = int(readers[late[0]])
            text = texts(node)[int(late[0] - starts[node])]
            raise BrokenInputError(node, f"data input {text!r} comes after a control input")


def find_inputs(texts: Sequence[Sequence[str]], resolve: Callable[[str], tuple[int, int]]) -> Inputs:
    """The inputs of nodes whose inputs are given by their names.

    Args:
        texts: the names, for each node.
        resolve: gives what a name means, as :attr:`Inputs.sources` and :attr:`Inputs.ports`.
    """
    found = np.array([resolve(text) for text in itertools.chain.from_iterable(texts)], np.int32).reshape(-1, 2)
    return Inputs(as_integers(list(map(len, texts))), found[:, 0], found[:, 1])


def _check_ports(src_node: Indices, src_port: Indices, dst_node: Indices, ports: Ports, names: Sequence[str]) -> None:
    existing = ports.output_counts(src_node)
    wrong = np.flatnonzero(src_port >= existing)
    if len(wrong):
        edge = wrong[0]
        what = f"reads port {src_port[edge]} of {names[src_node[edge]]!r}, which has {existing[edge]} output(s)"
        raise BrokenInputError(int(dst_node[edge]), what)


def _check_arity(counts: npt.NDArray[np.intp], ports: Ports) -> None:
    wrong = np.flatnonzero(counts != ports.input_counts())
    if len(wrong):
        node = int(wrong[0])
        signature = ports.signatures[node]
        expected = f"{signature.op} expects {len(signature.inputs)} data input(s)"
        raise BrokenInputError(node, f"{expected} and has {counts[node]}")
