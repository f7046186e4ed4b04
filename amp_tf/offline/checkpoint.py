"""The variables of a SavedModel on disk: what a checkpoint holds, and a copy with some of it in 16 bit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from amp_tf.errors import FileError

VARIABLES_FOLDER = "variables"
PREFIX = "variables"  #: begins the names of a checkpoint's files
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


class Checkpoint:
    """The checkpoint of a SavedModel.

    Args:
        folder: of the SavedModel.

    Attributes:
        shapes: of its float32 tensors, by key; empty for a model without variables.

    Raises:
        FileError: it is damaged.
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
        self.shapes = {key: tuple(shapes[key]) for key, dtype in self._types.items() if dtype == tf.float32}

    def keys_of(self, objects: Any) -> Iterator[tuple[int, str]]:
        """The variables of a SavedModel's object graph that are saved here: (number of the object, key).

        A checkpoint has an object graph of its own; objects are the same where the same names lead from the root to
        them, as when TensorFlow restores them.

        Args:
            objects: a SavedObjectGraph.
        """
        from tensorflow.core.protobuf import trackable_object_graph_pb2

        if self._reader is None or _OBJECTS not in self._types or not objects.nodes:
            return
        with self._reading():
            data = self._reader.get_tensor(_OBJECTS)
        saved = trackable_object_graph_pb2.TrackableObjectGraph.FromString(data).nodes
        waiting, seen = [(0, 0)], {(0, 0)}
        while waiting:
            mine, its = waiting.pop()
            if objects.nodes[mine].HasField("variable"):
                yield from ((mine, value.checkpoint_key) for value in saved[its].attributes if value.name == _VALUE)
            children = {child.local_name: child.node_id for child in saved[its].children}
            for child in objects.nodes[mine].children:
                pair = (child.node_id, children.get(child.local_name, -1))
                if pair[1] >= 0 and pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)

    def fits(self, key: str, data_type: int) -> bool:
        """Whether all finite values of a float32 tensor are finite in a 16-bit type, too.

        Raises:
            FileError: they cannot be read.
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

        Args:
            folder: of the SavedModel that the copy belongs to.
            types: the ``DataType`` numbers of those tensors, by key.

        Raises:
            FileError: it cannot be read or the copy cannot be written.
        """
        import tensorflow as tf

        prefix = os.fspath(folder / VARIABLES_FOLDER / PREFIX)
        keys = sorted(self._types)
        whole = [""] * len(keys)
        no_gpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.Graph().as_default(), tf.compat.v1.Session(config=no_gpu) as session:  # also where nothing is eager
            dtypes = [self._types[key] for key in keys]
            values = tf.raw_ops.RestoreV2(prefix=self._prefix, tensor_names=keys, shape_and_slices=whole, dtypes=dtypes)
            values = [tf.cast(value, types.get(key, value.dtype)) for key, value in zip(keys, values, strict=True)]
            save = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=keys, shape_and_slices=whole, tensors=values)
            try:
                session.run(save)
            except tf.errors.OpError as error:
                fix = "See that it can be read, and that there is room for the copy where you may write"
                raise FileError(
                    f"cannot be copied to {prefix!r} ({error.message})", where=self._prefix, fix=fix
                ) from None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # TensorFlow raises errors of several kinds, not all of them its own
            what = f"the checkpoint cannot be read ({error})"
            raise FileError(what, where=self._prefix, fix="Save the model again") from None


def is_checkpoint(name: str) -> bool:
    """Whether a file in the folder of variables is a part of the checkpoint."""
    return name.startswith((f"{PREFIX}.data-", f"{PREFIX}.index"))
