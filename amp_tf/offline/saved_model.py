"""Converts a SavedModel on disk: the copy computes in mixed precision in any TensorFlow, with or without amp_tf.

Only graphs change. Signatures keep their names and types, variables and assets are copied as they are, so weights stay
float32 on disk and in memory.
"""

from __future__ import annotations

import os.path
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting.schema import GraphReport, RewriteReport
from amp_tf.rewriting.pipeline import rewrite

MODEL_FILE = "saved_model.pb"
TEXT_MODEL_FILE = "saved_model.pbtxt"  # read where there is no binary one, as TensorFlow does
_FINGERPRINT_FILE = "fingerprint.pb"  # a hash of the graph, which is another one now
_SPLIT_MODEL_FILE = "saved_model.cpb"  # what TensorFlow writes beyond protobuf's 2 GiB, where it is told to


def convert_saved_model(
    src: str | Path, dst: str | Path, config: AmpConfig | None = None, *, hardware: Hardware | None = None
) -> RewriteReport:
    """Writes a mixed-precision copy of a SavedModel.

    The copy can be trained further, but for functions with a gradient of their own (``tf.custom_gradient``,
    ``tf.nn.silu``): TensorFlow saved those gradients for float32.

    Args:
        src: folder of a SavedModel, of TF1 or TF2.
        dst: folder to write; it must not exist, or be empty, and lie outside of ``src``.
        config: what to convert; the environment's settings by default. For a model that will be served on other
            devices than this machine's set ``precision`` and ``target``.
        hardware: the devices to convert for; this machine's CPU by default.

    Returns:
        The report of all graphs and functions of the model.

    Raises:
        GraphError: ``src`` is no SavedModel, its graph is broken or a file of it cannot be read, or ``dst`` is not
            empty, lies in ``src`` or cannot be written.
        OpListError: the lists contradict each other.
    """
    source, target = Path(src), Path(dst)
    model = read_saved_model(source)
    _check_target(source, target)
    reports: list[GraphReport] = []
    for meta_graph in model.meta_graphs:
        result = rewrite(meta_graph.graph_def, config, preserve=preserved_nodes(meta_graph), hardware=hardware)
        reports += result.report.graphs
        if result.changed:
            meta_graph.graph_def.CopyFrom(result.graph)
    _write(source, target, model.SerializeToString(deterministic=True))
    return RewriteReport(tuple(reports))


def is_saved_model(folder: str | Path) -> bool:
    """Whether a folder holds a SavedModel."""
    return any(os.path.isfile(Path(folder) / name) for name in (MODEL_FILE, TEXT_MODEL_FILE))


def read_saved_model(folder: Path) -> Any:
    """The ``SavedModel`` proto of a folder, with one MetaGraph at least.

    Raises:
        GraphError: there is none, or it is damaged.
    """
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    if not is_saved_model(folder):
        raise _no_model(folder)
    file = folder / MODEL_FILE
    try:
        if os.path.isfile(file):
            model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        else:
            file = folder / TEXT_MODEL_FILE
            model = text_format.Parse(file.read_text(encoding="utf-8"), saved_model_pb2.SavedModel())
    except OSError as error:
        raise GraphError(
            f"{file.name} cannot be read ({error.strerror})", where=str(folder), fix="Name a folder that you may read"
        ) from None
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise GraphError(f"{file.name} is damaged ({error})", where=str(folder), fix="Save the model again") from None
    if not model.meta_graphs:
        raise GraphError(f"{file.name} holds no graph", where=str(folder), fix="Save the model again")
    return model


def preserved_nodes(meta_graph: Any) -> set[str]:
    """The nodes that the world outside the graph names: signatures, savers, collections of ops and tensors."""
    tensors: list[str] = []
    for signature in meta_graph.signature_def.values():
        tensors += _tensor_names([*signature.inputs.values(), *signature.outputs.values()])
    saver = meta_graph.saver_def
    tensors += [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
    for collection in meta_graph.collection_def.values():
        tensors += collection.node_list.value
    return {name.removeprefix("^").partition(":")[0] for name in tensors if name}


def _no_model(folder: Path) -> GraphError:
    if os.path.isfile(folder / _SPLIT_MODEL_FILE):
        return GraphError(
            f"the model is split ({_SPLIT_MODEL_FILE}), because it is larger than 2 GiB",
            where=str(folder),
            fix="Keep large constants in variables and save the model again",
        )
    return GraphError(
        f"there is no {MODEL_FILE}",
        where=str(folder),
        fix="Name the folder that tf.saved_model.save or model.export has written",
    )


def _check_target(source: Path, target: Path) -> None:
    if Path(os.path.realpath(source)) in Path(os.path.realpath(target)).parents:
        raise GraphError(
            f"the folder lies in the model that is converted, {str(source)!r}",
            where=str(target),
            fix="Name a new folder outside of it; nothing was written",
        )
    if os.path.isdir(target) and any(target.iterdir()):
        raise GraphError("the folder is not empty", where=str(target), fix="Name a new folder; nothing was written")


def _write(source: Path, target: Path, model: bytes) -> None:
    skipped = shutil.ignore_patterns(MODEL_FILE, TEXT_MODEL_FILE, _FINGERPRINT_FILE)
    try:
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=skipped)
        target.chmod(target.stat().st_mode | stat.S_IWUSR)  # a copy of a read-only folder is read-only
        (target / MODEL_FILE).write_bytes(model)
    except shutil.Error as error:  # all that could not be copied, once it is known
        file, _, why = error.args[0][0]
        raise GraphError(
            f"cannot be copied to {str(target)!r} ({why})",
            where=str(file),
            fix=f"See that it can be read and the disk has room, and remove {str(target)!r}, which is not complete",
        ) from None
    except OSError as error:
        raise GraphError(
            f"cannot be written ({error.strerror or error})",
            where=str(target),
            fix="Name a new folder where you may write, on a disk with room for the model",
        ) from None


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
