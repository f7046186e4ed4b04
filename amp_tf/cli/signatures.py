"""Signatures of SavedModels, and files of inputs for them, for the commands that run models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from amp_tf.errors import AmpError, GraphError
from amp_tf.offline.saved_model import read_saved_model
from amp_tf.reporting import files

DEFAULT_SIGNATURE = "serving_default"


def load_model(folder: str | Path) -> Any:
    """A SavedModel, loaded.

    Raises:
        FileError: the folder has none, or a damaged one.
    """
    read_saved_model(Path(folder))  # which says what is wrong with it
    import tensorflow as tf

    return tf.saved_model.load(str(folder))


def find_signature(model: Any, name: str, folder: str | Path) -> Any:
    """A signature of a loaded model.

    Raises:
        GraphError: it has none of that name.
    """
    signatures = model.signatures
    if name not in signatures:
        known = ", ".join(signatures)
        fix = f"Choose with --signature: {known}" if known else "Save the model with signatures, as model.export does"
        raise GraphError(f"the model has no signature {name!r}", where=str(folder), fix=fix)
    return signatures[name]


def read_inputs(path: str, wanted: list[str]) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file, one for each argument of a signature.

    Raises:
        AmpError: the file cannot be read, or has other arrays.
    """
    if Path(path).is_file():
        files.check_unpacked(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, without a name")
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # empty, cut off, damaged, or of a size that it has not
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise AmpError(f"cannot be read ({why})", where=path, fix=_how(wanted)) from None
    if sorted(arrays) != sorted(wanted):
        what = f"expected the arrays {', '.join(sorted(wanted))}, got {', '.join(sorted(arrays)) or 'none'}"
        raise AmpError(what, where=path, fix=_how(wanted))
    return arrays


def _how(wanted: list[str]) -> str:
    return f"Write it with numpy.savez('inputs.npz', {', '.join(f'{name}=…' for name in wanted)})"


def answer(signature: Any, path: str) -> dict[str, Any]:
    """What a signature answers to the inputs of a ``.npz`` file.

    Raises:
        AmpError: the file cannot be read, has other arrays, or the signature does not take them.
    """
    import tensorflow as tf

    inputs = signature.structured_input_signature[1]
    arrays = read_inputs(path, list(inputs))
    try:
        return dict(signature(**{name: tf.constant(array, inputs[name].dtype) for name, array in arrays.items()}))
    except Exception as error:  # of another type or shape, or what the model itself cannot compute
        taken = ", ".join(f"{name} {spec.dtype.name}{list(spec.shape)}" for name, spec in inputs.items())
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise AmpError(f"the model does not take its arrays ({why})", where=path, fix=f"It takes {taken}") from None


def tell_errors(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """How far a copy is off from the original, a line for each output.

    Args:
        expected, found: what both answered.
    """
    lines = []
    for name, value in sorted(expected.items()):
        wanted, got = np.asarray(value), np.asarray(found[name])
        if not value.dtype.is_floating:
            lines.append(f"{name}: {np.count_nonzero(wanted != got):,} of {wanted.size:,} values differ")
            continue
        off = np.abs(wanted.astype(np.float64) - got.astype(np.float64))
        largest = float(np.max(np.abs(wanted), initial=0))
        share = f", {np.max(off) / largest:.2%} of the largest value" if off.size and largest else ""
        lines.append(f"{name}: error at most {np.max(off, initial=0):.3g}{share}, {np.mean(off):.3g} on average")
    return lines
