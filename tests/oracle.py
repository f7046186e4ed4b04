"""The judge: TensorFlow's own AutoMixedPrecision pass, run offline on a GraphDef.

``tensorflow.python.grappler.tf_optimizer.OptimizeGraph`` runs one Grappler pass, named in
``RewriterConfig.optimizers``, over a MetaGraphDef, without a session and without a GPU. The pass
takes its settings from the environment at every call; :func:`run_original` sets the level and the
changes of lists of an :class:`amp_tf.AmpConfig` for the one call. One Grappler cluster is made per
process and kept: making one starts a session (seconds), while a call on a small graph takes
a millisecond.

The bfloat16 mode does nothing where oneDNN has no bfloat16 kernels. There TensorFlow is told that
it has (:mod:`tests.as_cpu.onednn`), so that the pass judges on every CPU as on one with avx512.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
import os
from collections.abc import Mapping

_PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
# Read once per process by TensorFlow, hence set on import. Without it the CPU mode keeps ops in
# float32 between casts.
os.environ[f"{_PREFIX}EMULATE_FP16"] = "0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tensorflow.core.framework import graph_pb2  # noqa: E402  the variable above must be set first
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2  # noqa: E402
from tensorflow.python.framework import errors_impl, kernels, versions  # noqa: E402
from tensorflow.python.grappler import cluster, tf_optimizer  # noqa: E402

from amp_tf.config import LIST_NAMES, AmpConfig  # noqa: E402
from tests.as_cpu import onednn  # noqa: E402

DEFAULT = AmpConfig()
DT_FLOAT = 1
DT_HALF = 19
DT_BFLOAT16 = 14


class Mode(enum.Enum):
    """A mode of the original pass. The value is Grappler's name for it."""

    BFLOAT16 = "auto_mixed_precision_onednn_bfloat16"  #: the oneDNN lists, bfloat16 on the CPU
    CUDA_LISTS = "auto_mixed_precision_cpu"  #: the CUDA lists with the CPU's float16 kernels
    #: with the GPU's, of the CUDA wheel; nodes without a device count as being on a GPU
    CUDA = "auto_mixed_precision"

    @property
    def f16(self):
        """The DataType number of the mode's 16-bit type."""
        return DT_BFLOAT16 if self is Mode.BFLOAT16 else DT_HALF

    @property
    def precision(self):
        return "bfloat16" if self is Mode.BFLOAT16 else "float16"

    @property
    def target(self):
        return "gpu" if self is Mode.CUDA else "cpu"


def _has_gpu_kernels():
    return any(
        kernel.device_type == "GPU"
        for kernel in kernels.get_registered_kernels_for_op("MatMul").kernel
    )


# The modes that the installed TensorFlow can judge; tensorflow-cpu has no kernels for CUDA.
MODES = (Mode.BFLOAT16, Mode.CUDA_LISTS, *((Mode.CUDA,) if _has_gpu_kernels() else ()))
# amp_tf follows TensorFlow 2.21; the pass of 2.16 – 2.19 decides otherwise on infer nodes, so it is
# no judge of it.
IS_JUDGE = versions.VERSION.split(".")[:2] == ["2", "21"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The graph that a pass made, with types and ops of the nodes that were there before."""

    graph: graph_pb2.GraphDef
    added: int  #: nodes
    types: Mapping[tuple[str, str], tuple[int, ...]]  #: DataType numbers by node and attribute
    ops: Mapping[str, str]

    def nodes_in(self, data_type):
        """The nodes with at least one type attribute of that DataType."""
        return {node for (node, _), types in self.types.items() if data_type in types}


class OriginalFailedError(Exception):
    """The C++ pass gave up on the graph (it then leaves the graph unchanged at run time)."""


def run_original(
    graph_def,
    mode,
    preserve,
    knobs=DEFAULT,
):
    """The graph as the C++ pass alone rewrites it; raises an OriginalFailedError where the pass
    ends with an error.

    ``preserve`` are the nodes that keep their types, at least one. Without a mode it is the same
    call without a pass, to subtract its time: the CUDA mode, which ends at once where there is no
    GPU.
    """
    variables = _variables(knobs)
    if (
        mode is Mode.CUDA
    ):  # in the CPU modes a simulated GPU would attract the nodes without a device
        variables[f"{_PREFIX}SIMULATE_GPU"] = "1"
    judging_bfloat16 = (
        onednn.told(bfloat16=True) if mode is Mode.BFLOAT16 else contextlib.nullcontext()
    )
    with _environment(variables), judging_bfloat16:
        graph = optimized(graph_def, ((mode or Mode.CUDA).value,), preserve)
    return outcome(graph_def, graph)


def optimized(graph_def, optimizers, preserve):
    """The graph after Grappler optimizers given by name, such as ``function``, which inlines calls
    and lowers loops.
    """
    metagraph = meta_graph_pb2.MetaGraphDef()
    metagraph.graph_def.CopyFrom(graph_def)
    metagraph.collection_def["train_op"].node_list.value.extend(preserve)
    try:
        return tf_optimizer.OptimizeGraph(
            _config(optimizers), metagraph, verbose=False, cluster=_cluster()
        )
    except errors_impl.OpError as error:
        raise OriginalFailedError(error.message) from error


def outcome(before, after):
    """Reads the types of the nodes of ``before`` in ``after``."""
    names = {node.name for node in before.node}
    kept = [node for node in after.node if node.name in names]
    return Outcome(
        graph=after,
        added=len(after.node) - len(before.node),
        types={(node.name, attr): types for node in kept for attr, types in type_attributes(node)},
        ops={node.name: node.op for node in kept},
    )


def type_attributes(node):
    """The type attributes of a NodeDef and their DataType numbers, without those that start with an
    underscore.
    """
    for name, value in node.attr.items():
        if name.startswith("_"):
            continue
        kind = value.WhichOneof("value")
        if kind == "type":
            yield name, (value.type,)
        elif kind == "list" and value.list.type:
            yield name, tuple(value.list.type)


def _variables(knobs):
    """The variables by which the pass gets the level and the changes of the lists."""
    variables = {}
    if knobs.level != "DEFAULT":
        variables[f"{_PREFIX}LEVEL"] = knobs.level
    for name, action in itertools.product(LIST_NAMES, ("add", "remove")):
        ops = getattr(knobs, f"{name}_{action}")
        if ops:
            variables[f"{_PREFIX}{name.upper()}LIST_{action.upper()}"] = ",".join(ops)
    return variables


@functools.cache
def _cluster():
    return cluster.Cluster()


@functools.cache
def _config(optimizers):
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.extend(optimizers)  # switches every other one off
    options.min_graph_nodes = -1
    options.meta_optimizer_iterations = options.ONE
    options.fail_on_optimizer_errors = True
    return config


@contextlib.contextmanager
def _environment(variables):
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
