"""Reads what holds graphs and weights: SavedModels, Keras files, models in memory, GraphDef files,
checkpoints.

It also writes GraphDef files, and checkpoints with some variables in 16 bit.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from amp_tf.errors import FileError, GraphError
from amp_tf.files import RefusedFileError, check_regular, read_regular
from amp_tf.reporting import files

TEXT_SUFFIXES = (".pbtxt", ".txt")
MODEL_FILE = "saved_model.pb"
TEXT_MODEL_FILE = "saved_model.pbtxt"  # read where there is no binary one, as TensorFlow does
_SPLIT_MODEL_FILE = (
    "saved_model.cpb"  # what TensorFlow writes for models above protobuf's 2 GiB, on request
)
VARIABLES_FOLDER = "variables"
PREFIX = "variables"  #: begins the names of a checkpoint's files
_MOST_BYTES = 2 << 30  #: of a GraphDef or SavedModel proto: protobuf's own limit


def read_graph_file(path: str | Path) -> Any:
    """A GraphDef from a ``.pb`` or ``.pbtxt`` file; a FileError where there is none."""
    fix = (
        "Name a SavedModel's folder (not its saved_model.pb), a Keras file, or a file that holds "
        "a whole GraphDef: "
    )
    return _read_proto(Path(path), fix=f"{fix}.pb (binary) or .pbtxt (text)")


def _read_proto(path: Path, fix: str, *, of_model: bool = False) -> Any:
    try:
        data = read_regular(path, _MOST_BYTES)  # before TensorFlow is imported, which takes seconds
    except OSError as error:
        raise FileError(f"cannot be read ({error.strerror})", where=str(path), fix=fix) from None
    if not data:
        raise FileError("the file is empty", where=str(path), fix=fix)
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    proto = SavedModel() if of_model else GraphDef()
    try:
        if path.name.endswith(TEXT_SUFFIXES):
            return text_format.Parse(data.decode(), proto)
        proto.ParseFromString(data)
        return proto
    except (text_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"holds no graph ({error})", where=str(path), fix=fix) from None


def write_graph_file(graph: Any, path: str | Path) -> None:
    """Writes a GraphDef, as text where the name ends in ``.pbtxt`` or ``.txt``.

    A FileError where it cannot be written; its old content, which may be the input, is still there.
    """
    with files.writing(path):
        files.write(
            path, str(graph) if str(path).endswith(TEXT_SUFFIXES) else graph.SerializeToString()
        )


def is_keras_file(source: Any) -> bool:
    """Whether a value is the path of a file written by Keras' ``model.save``."""
    return (
        isinstance(source, (str, os.PathLike))
        and str(source).endswith((".keras", ".h5"))
        and os.path.isfile(source)
    )


@contextlib.contextmanager
def saved_model_of(source: Any) -> Iterator[Path]:
    """The folder of a SavedModel: the given one, or a temporary one that exists during the block.

    It may be a ``.keras`` or ``.h5`` file, a Keras model, or a ``tf.Module``, too; a GraphError
    where that cannot be loaded or exported.
    """
    is_path = isinstance(source, (str, os.PathLike))
    if is_path and not is_keras_file(source):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        where, place = str(source) if is_path else type(source).__name__, f"{folder}/model"
        if is_path:
            files.check_unpacked(source)
        try:
            model, library = source, "keras"
            if is_path and zipfile.is_zipfile(source):
                with zipfile.ZipFile(source) as archive:
                    version = json.loads(archive.read("metadata.json")).get("keras_version", "")
                library = "tf_keras" if version.startswith("2.") else "keras"
            if is_path:
                model = importlib.import_module(library).models.load_model(source, compile=False)
            if hasattr(model, "export"):
                with contextlib.redirect_stdout(
                    io.StringIO()
                ):  # hides Keras' description of a temporary folder
                    model.export(place)
            else:
                importlib.import_module("tensorflow").saved_model.save(model, place)
        except Exception as error:  # whatever Keras, its layers or TensorFlow raise
            why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            fix = "Call the model on data once before, or export it by hand: model.export(folder)"
            raise GraphError(
                f"the model cannot be exported ({why})", where=where, fix=fix
            ) from error
        yield Path(place)


def is_saved_model(folder: str | Path) -> bool:
    """Whether a folder holds a SavedModel."""
    return any(os.path.isfile(Path(folder) / name) for name in (MODEL_FILE, TEXT_MODEL_FILE))


def read_saved_model(folder: Path) -> Any:
    """The ``SavedModel`` proto of a folder, with at least one MetaGraph; a FileError where there is
    none, or a damaged one.
    """
    if not is_saved_model(folder):  # before TensorFlow is imported, which takes seconds
        what, fix = (
            f"there is no {MODEL_FILE}",
            "Name the folder that tf.saved_model.save or model.export has written",
        )
        if os.path.isfile(folder / _SPLIT_MODEL_FILE):
            what = f"the model is split ({_SPLIT_MODEL_FILE}), because it is larger than 2 GiB"
            fix = "Keep large constants in variables and save the model again"
        raise FileError(what, where=str(folder), fix=fix)
    _check_files(folder)
    file = folder / (MODEL_FILE if os.path.isfile(folder / MODEL_FILE) else TEXT_MODEL_FILE)
    model = _read_proto(file, fix="Save the model again", of_model=True)
    if not model.meta_graphs:
        raise FileError("holds no graph", where=str(file), fix="Save the model again")
    return model


def _check_files(folder: Path) -> None:
    """Raises a FileError where a model's folder holds a pipe or a device, or a link to one: whoever
    reads it hangs.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(
                FileNotFoundError
            ):  # a link to nothing, which nobody can read either
                facts = os.stat(path)
                try:
                    check_regular(facts)
                except RefusedFileError as error:
                    fix = "Remove it from the model's folder"
                    raise FileError(
                        f"cannot be read ({error.strerror})", where=path, fix=fix
                    ) from None


def preserved_nodes(meta_graph: Any) -> set[str]:
    """The nodes that something outside the graph names: signatures, savers, collections of ops and
    tensors.
    """
    tensors: list[str] = []
    for signature in meta_graph.signature_def.values():
        tensors += _tensor_names([*signature.inputs.values(), *signature.outputs.values()])
    saver = meta_graph.saver_def
    tensors += [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
    for collection in meta_graph.collection_def.values():
        tensors += collection.node_list.value
    named = {name.removeprefix("^").partition(":")[0] for name in tensors if name}
    # Collections may name nodes that no longer exist.
    return named.intersection(node.name for node in meta_graph.graph_def.node)


def _tensor_names(infos: Iterable[Any]) -> Iterator[str]:
    for info in infos:
        sparse = info.coo_sparse  # empty in other encodings, as is the name in this one
        yield from (
            info.name,
            sparse.values_tensor_name,
            sparse.indices_tensor_name,
            sparse.dense_shape_tensor_name,
        )
        yield from _tensor_names(info.composite_tensor.components)


class Checkpoint:
    """The checkpoint of a SavedModel's folder; a FileError where it is damaged.

    ``shapes`` are those of its float32 tensors, by key; there are none for a model without
    variables.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self._prefix = os.fspath(folder / VARIABLES_FOLDER / PREFIX)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._reader: Any = None
        if not os.path.isfile(f"{self._prefix}.index"):
            return
        with self._reading():
            self._reader = tf.train.load_checkpoint(self._prefix)
        shapes = self._reader.get_variable_to_shape_map()
        self._types = self._reader.get_variable_to_dtype_map()
        self.shapes = {
            key: tuple(shapes[key]) for key, dtype in self._types.items() if dtype == tf.float32
        }

    def keys_of(self, objects: Any) -> Iterator[tuple[int, str]]:
        """The variables of a SavedObjectGraph that are saved here: (number of the object, key).

        A checkpoint has an object graph of its own; objects are the same where the same names lead
        from the root to them, as when TensorFlow restores them.
        """
        from tensorflow.python.checkpoint.checkpoint import object_metadata

        if (
            self._reader is None
            or "_CHECKPOINTABLE_OBJECT_GRAPH" not in self._types
            or not objects.nodes
        ):
            return
        with self._reading():
            saved = object_metadata(self._prefix).nodes
        waiting, seen = [(0, 0)], {(0, 0)}
        while waiting:
            mine, its = waiting.pop()
            if objects.nodes[mine].HasField("variable"):
                values = (
                    value for value in saved[its].attributes if value.name == "VARIABLE_VALUE"
                )
                yield from ((mine, value.checkpoint_key) for value in values)
            children = {child.local_name: child.node_id for child in saved[its].children}
            for child in objects.nodes[mine].children:
                pair = (child.node_id, children.get(child.local_name, -1))
                if pair[1] >= 0 and pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)

    def fits(self, key: str, data_type: int) -> bool:
        """Whether all finite values of a float32 tensor are finite in a 16-bit type, too; a
        FileError if they cannot be read.
        """
        import numpy as np
        import tensorflow as tf

        with self._reading():
            values = self._reader.get_tensor(key)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = values.astype(tf.as_dtype(data_type).as_numpy_dtype)
        return bool((np.isfinite(rounded) | ~np.isfinite(values)).all())

    def write(self, folder: Path, types: Mapping[str, int]) -> None:
        """Writes a copy in which some tensors have another type, rounded to nearest as a cast does.

        ``folder`` is that of the SavedModel that the copy belongs to, and ``types`` has their
        ``DataType`` numbers, by key. Raises a FileError where it cannot be read or the copy cannot
        be written.
        """
        import tensorflow as tf

        prefix = os.fspath(folder / VARIABLES_FOLDER / PREFIX)
        keys = sorted(self._types)
        whole = [""] * len(keys)
        no_gpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with (
            tf.Graph().as_default(),
            tf.compat.v1.Session(config=no_gpu) as session,
        ):  # also where nothing is eager
            dtypes = [self._types[key] for key in keys]
            values = tf.raw_ops.RestoreV2(
                prefix=self._prefix, tensor_names=keys, shape_and_slices=whole, dtypes=dtypes
            )
            values = [
                tf.cast(value, types.get(key, value.dtype))
                for key, value in zip(keys, values, strict=True)
            ]
            save = tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=keys, shape_and_slices=whole, tensors=values
            )
            try:
                session.run(save)
            except tf.errors.OpError as error:
                fix = (
                    "See that it can be read, and that there is room for the copy where you may "
                    "write"
                )
                what = f"cannot be copied to {prefix!r} ({error.message})"
                raise FileError(what, where=self._prefix, fix=fix) from None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (
            Exception
        ) as error:  # TensorFlow raises errors of several kinds, not all of them its own
            what = f"the checkpoint cannot be read ({error})"
            raise FileError(what, where=self._prefix, fix="Save the model again") from None
