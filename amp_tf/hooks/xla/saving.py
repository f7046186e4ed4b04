"""Saves the original float32 functions in a SavedModel that is exported while amp_tf is on.

TensorFlow copies the functions of a model out of its runtime, where those for XLA are rewritten. The meta graph is
corrected right after it was built: rewritten functions get their original definition back, and clones are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amp_tf.hooks.patches import Patches, calling
from amp_tf.hooks.process import notices

_functions: Mapping[bytes, Any] = {}
_patches = Patches()


def install(rewritten: Mapping[bytes, Any]) -> None:
    """Wraps the function that builds the meta graph of a SavedModel. A second call does nothing.

    The wrapper stays: a model that was rewritten must be saved in its original form even after amp_tf was turned off.

    Args:
        rewritten: the AtomicFunctions that were rewritten, by name; each has its original definition as
            ``_amp_tf_original`` (serialized) and the names of its clones as ``_amp_tf_clones``.
    """
    from tensorflow.python.saved_model import save

    global _functions
    _functions = rewritten
    _patches.put(save, "_build_meta_graph", calling(_build_and_restore))


def _build_and_restore(build: Any, /, *args: Any, **kwargs: Any) -> Any:
    built = build(*args, **kwargs)
    try:
        restore(built[0].graph_def.library)
    except Exception as error:
        notices.warn_once(
            "saving",
            f"functions for XLA are saved as they were rewritten, in 16 bit ({type(error).__name__}: {error})",
            where="tf.saved_model.save",
            fix="Save in a process with AMP_TF_DISABLE=1, and please report this",
        )
    return built


def restore(library: Any) -> None:
    """Puts the original functions back into a FunctionDefLibrary, in place, and takes the clones out."""
    present = {definition.signature.name: definition for definition in library.function}
    clones: set[str] = set()
    for name, function in list(_functions.items()):
        if definition := present.get(name.decode()):
            definition.ParseFromString(function._amp_tf_original)
            clones |= function._amp_tf_clones
    if clones.isdisjoint(present):
        return
    kept = [
        type(definition).FromString(definition.SerializeToString())
        for name, definition in present.items()
        if name not in clones
    ]
    del library.function[:]
    library.function.extend(kept)
