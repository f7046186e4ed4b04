"""Converts a SavedModel on disk: the copy computes in mixed precision in any TensorFlow, with or without amp_tf.

Only graphs change. Signatures keep their names and types, variables and assets are copied as they are, so weights stay
float32 on disk and in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting.schema import GraphReport, RewriteReport
from amp_tf.rewriting.pipeline import rewrite

MODEL_FILE = "saved_model.pb"
_FINGERPRINT_FILE = "fingerprint.pb"  # a hash of the graph, which is another one now


def convert_saved_model(
    src: str | Path, dst: str | Path, config: AmpConfig | None = None, *, hardware: Hardware | None = None
) -> RewriteReport:
    """Writes a mixed-precision copy of a SavedModel.

    Args:
        src: folder of a SavedModel, of TF1 or TF2.
        dst: folder to write; it must not exist, or be empty.
        config: what to convert; the environment's settings by default. For a model that will be served on other
            devices than this machine's set ``precision`` and ``target``.
        hardware: the devices to convert for; this machine's CPU by default.

    Returns:
        The report of all graphs and functions of the model.

    Raises:
        GraphError: ``src`` is no SavedModel or its graph is broken, or ``dst`` is not empty or cannot be written.
        OpListError: the lists contradict each other.
    """
    source, target = Path(src), Path(dst)
    model = _read(source)
    if target.is_dir() and any(target.iterdir()):
        raise GraphError("the folder is not empty", where=str(target), fix="Name a new folder; nothing was written")
    reports: list[GraphReport] = []
    for meta_graph in model.meta_graphs:
        result = rewrite(meta_graph.graph_def, config, preserve=_preserved(meta_graph), hardware=hardware)
        reports += result.report.graphs
        if result.changed:
            meta_graph.graph_def.CopyFrom(result.graph)
    skipped = shutil.ignore_patterns(MODEL_FILE, _FINGERPRINT_FILE)
    try:
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=skipped)
        (target / MODEL_FILE).write_bytes(model.SerializeToString(deterministic=True))
    except OSError as error:
        raise GraphError(
            f"cannot be written ({error.strerror or error})",
            where=str(target),
            fix="Name a new folder where you may write, on a disk with room for the model",
        ) from None
    return RewriteReport(tuple(reports))


def is_saved_model(folder: str | Path) -> bool:
    """Whether a folder holds a SavedModel."""
    return (Path(folder) / MODEL_FILE).is_file()


def _read(folder: Path) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    if not is_saved_model(folder):
        raise GraphError(
            f"there is no {MODEL_FILE}", where=str(folder), fix="Name the folder that tf.saved_model.save has written"
        )
    try:
        return saved_model_pb2.SavedModel.FromString((folder / MODEL_FILE).read_bytes())
    except DecodeError as error:
        raise GraphError(f"{MODEL_FILE} is damaged ({error})", where=str(folder), fix="Save the model again") from None


def _preserved(meta_graph: Any) -> set[str]:
    """The nodes that the world outside the graph names: signatures, savers, collections of ops and tensors."""
    tensors: list[str] = []
    for signature in meta_graph.signature_def.values():
        tensors += _tensor_names([*signature.inputs.values(), *signature.outputs.values()])
    saver = meta_graph.saver_def
    tensors += [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
    for collection in meta_graph.collection_def.values():
        tensors += collection.node_list.value
    return {name.removeprefix("^").partition(":")[0] for name in tensors if name}


def _tensor_names(infos: Iterable[Any]) -> list[str]:
    names = []
    for info in infos:
        if info.WhichOneof("encoding") == "coo_sparse":
            sparse = info.coo_sparse
            names += [sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name]
        elif info.WhichOneof("encoding") == "composite_tensor":
            names += _tensor_names(info.composite_tensor.components)
        else:
            names.append(info.name)
    return names
