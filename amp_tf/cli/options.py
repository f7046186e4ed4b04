"""What several commands take: settings as options, signatures of models, files of inputs for them."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from amp_tf.config import GOALS, LEVELS, LIST_NAMES, PRECISIONS, TARGETS, AmpConfig
from amp_tf.errors import AmpError, GraphError
from amp_tf.offline.reading import read_saved_model, saved_model_of
from amp_tf.oplists.hardware import MIN_COMPUTE_CAPABILITY, Hardware
from amp_tf.reporting import files
from amp_tf.values import dtype_name, read_names, read_patterns

_PRECISION = "the 16-bit type; auto, the default, converts nothing on a CPU without bfloat16 arithmetic"
_LEVEL = "how much: UNSAFE_FORCE_ALL all, TREAT_INFER_AS_DENY less, TENSOR_CORES_ONLY (GPUs) the allow list alone"
_PATTERNS = "layer:PATH, or regular expressions for node names, comma-separated"
_TARGET = "the device to convert for, where nodes name none; gpu needs no GPU on this machine"


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options; those that are not given leave the environment's settings unchanged."""
    parser.add_argument("--precision", type=dtype_name, choices=PRECISIONS, help=_PRECISION)
    parser.add_argument("--target", choices=TARGETS, help=_TARGET)
    parser.add_argument("--goal", choices=GOALS, help="convert for speed, or for the largest batch (memory)")
    parser.add_argument("--level", choices=LEVELS, type=str.upper, help=_LEVEL)
    parser.add_argument("--lock", metavar="FILE", help="a lock file of amp-tf tune: what it names stays in float32")
    parser.add_argument("--keep-float32", action="append", metavar="PATTERNS", help=f"keep in float32; {_PATTERNS}")
    parser.add_argument("--force-f16", action="append", metavar="PATTERNS", help=f"convert if possible; {_PATTERNS}")
    lists = parser.add_argument_group("op lists", "Op types, comma-separated. An op is on one list at most.")
    for name in LIST_NAMES:
        for action, verb in (("add", "join"), ("remove", "leave")):
            lists.add_argument(f"--{name}-{action}", metavar="OPS", help=f"ops that {verb} the {name} list")


def read_config(args: argparse.Namespace) -> AmpConfig:
    """The environment's settings, changed by the options: lists are extended, other settings replaced.

    Raises:
        ConfigError: a setting means nothing.
    """
    fields = [field.name for field in dataclasses.fields(AmpConfig)]
    given = {name: value for name in fields if (value := getattr(args, name, None)) is not None}
    is_list = {name: isinstance(getattr(AmpConfig(), name), tuple) for name in given}
    config = AmpConfig.from_env(without=[name for name in given if not is_list[name]])
    changes: dict[str, object] = {}
    for name, value in given.items():
        if is_list[name]:
            texts, read = ([value], read_names) if isinstance(value, str) else (value, read_patterns)
            changes[name] = (*getattr(config, name), *(item for text in texts for item in read(text, name)))
        else:
            changes[name] = value
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


def hardware_for(config: AmpConfig) -> Hardware:
    """The devices to rewrite for: any current GPU for ``--target gpu``, else this machine's CPU."""
    return Hardware((MIN_COMPUTE_CAPABILITY,)) if config.target == "gpu" else Hardware.detect_cpu()


DEFAULT_SIGNATURE = "serving_default"


def load_signature(source: str, name: str) -> tuple[Any, Any]:
    """A model on disk, and one of its signatures, whose variables live as long as the model does.

    Args:
        source: a SavedModel's folder or a Keras file.
        name: of the signature.

    Raises:
        FileError: there is no model, or a damaged one.
        GraphError: it has no signature of that name.
    """
    with saved_model_of(source) as folder:
        read_saved_model(folder)  # which says what is wrong with it
        import tensorflow as tf

        model = tf.saved_model.load(str(folder))
    if name not in model.signatures:
        known = ", ".join(model.signatures)
        fix = f"Choose with --signature: {known}" if known else "Save the model with signatures, as model.export does"
        raise GraphError(f"the model has no signature {name!r}", where=source, fix=fix)
    return model, model.signatures[name]


def read_inputs(path: str, wanted: list[str]) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file, one for each argument of a signature.

    Raises:
        AmpError: the file cannot be read, or has other arrays.
    """
    fix = f"Write it with numpy.savez('inputs.npz', {', '.join(f'{name}=…' for name in wanted)})"
    if Path(path).is_file():
        files.check_unpacked(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, without a name")
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # empty, cut off, damaged, or of a size that it has not
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise AmpError(f"cannot be read ({why})", where=path, fix=fix) from None
    if sorted(arrays) != sorted(wanted):
        what = f"expected the arrays {', '.join(sorted(wanted))}, got {', '.join(sorted(arrays)) or 'none'}"
        raise AmpError(what, where=path, fix=fix)
    return arrays
