"""What several commands take: settings as options, signatures of models, files of inputs for them."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from amp_tf.config import GOALS, LEVELS, LIST_NAMES, PRECISIONS, TARGETS, AmpConfig
from amp_tf.errors import AmpError, GraphError
from amp_tf.graph.names import missing_node
from amp_tf.offline.reading import read_saved_model
from amp_tf.oplists.hardware import MIN_COMPUTE_CAPABILITY, Hardware
from amp_tf.painting.reasons import Rule
from amp_tf.reporting import files
from amp_tf.reporting.schema import RewriteReport
from amp_tf.values import dtype_name, read_names, read_patterns

_PRECISION = "the 16-bit type; auto, the default, converts nothing on a CPU without bfloat16 arithmetic"
_TARGET = "the device type of nodes that carry no device; gpu needs none on this machine"
#: What to add where nothing is converted because no device of this machine is.
NAME_A_TARGET = "--precision float16 --target gpu is what a GPU would run; --precision bfloat16 converts for this CPU"


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options; those that are not given leave the environment's settings unchanged."""
    parser.add_argument("--precision", type=dtype_name, choices=PRECISIONS, help=_PRECISION)
    parser.add_argument("--target", choices=TARGETS, help=_TARGET)
    parser.add_argument("--goal", choices=GOALS, help="what is rewritten for: speed, or the largest batch")
    parser.add_argument("--level", choices=LEVELS, type=str.upper, help="how much is converted")
    parser.add_argument("--lock", metavar="FILE", help="the lock file of amp-tf tune; what it names stays in float32")
    parser.add_argument("--keep-float32", action="append", metavar="PATTERNS", help="nodes that stay in float32")
    parser.add_argument("--force-f16", action="append", metavar="PATTERNS", help="nodes converted if they can be")
    lists = parser.add_argument_group("op lists", "Ops, comma-separated. An op that joins a list leaves its own.")
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


def check_preserved(names: Iterable[str], graph: Any) -> None:
    """Checks that each node to be preserved exists, because a name of no node would preserve nothing.

    Args:
        names: what ``--preserve`` names.
        graph: the GraphDef. Nodes of its functions are never preserved.

    Raises:
        GraphError: a node is not there; the message names the closest ones.
    """
    present = [node.name for node in graph.node]
    for name in set(names).difference(present):
        if any(node.name == name for function in graph.library.function for node in function.node_def):
            raise GraphError(
                f"node {name!r} is in a function, and only nodes of the graph itself are preserved",
                where="--preserve",
                fix=f"Keep it in float32 with --keep-float32 '^{re.escape(name)}$'",
            )
        raise missing_node(name, present, "--preserve")


def tell_target(report: RewriteReport) -> None:
    """Prints to stderr which options would convert, if nothing is because no device here is converted for."""
    if report.why_nothing is not None and report.why_nothing.rule is Rule.NO_TARGET:
        print(f"{NAME_A_TARGET}.", file=sys.stderr)


def hardware_for(config: AmpConfig) -> Hardware:
    """The devices to rewrite for: any current GPU for ``--target gpu``, else this machine's CPU."""
    return Hardware((MIN_COMPUTE_CAPABILITY,)) if config.target == "gpu" else Hardware.detect_cpu()


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
        raise AmpError(f"cannot be read ({why})", where=path, fix=_how_to_write(wanted)) from None
    if sorted(arrays) != sorted(wanted):
        what = f"expected the arrays {', '.join(sorted(wanted))}, got {', '.join(sorted(arrays)) or 'none'}"
        raise AmpError(what, where=path, fix=_how_to_write(wanted))
    return arrays


def _how_to_write(wanted: list[str]) -> str:
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
