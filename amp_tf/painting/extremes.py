"""Constants that the 16-bit type cannot hold: cast to it, they would be infinite.

-1e9 stands for "never" in masks, Keras' own among them, and is below float16's least number; so is ``tf.float32.min``,
also below bfloat16's. A row of a mask that allows nothing, such as that of a padded position, has a softmax in float32;
of infinities it is NaN, and so is each gradient then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule


def keep_extremes(canvas: Canvas) -> None:
    """What reads such a constant is painted deny, and what uses its values, up to the next allow node.

    Difference "extreme-constant": TensorFlow's pass looks at no values.
    """
    view, passable = canvas.view, (canvas.on_infer | canvas.on_clear) & (canvas.deny ^ 1)
    constants = [
        unit for node in _extreme_constants(canvas) for unit in view.units(node) if view.dtypes[unit] == datatypes.FLOAT
    ]
    readers = canvas.flood(constants, passable, forward=True)
    canvas.paint_deny(readers, Rule.TOO_LARGE)


def _extreme_constants(canvas: Canvas) -> list[int]:
    """The Const nodes of finite numbers beyond the 16-bit type's largest; of each kind one node is looked at."""
    view, largest = canvas.view, canvas.target.precision.max_finite
    constants = np.asarray(view.nodes_where(lambda signature: signature.op == "Const"), np.int32)
    kinds, first = np.unique(view.kinds[constants], return_index=True)
    extreme = [
        kind for kind, node in zip(kinds, constants[first], strict=True) if _largest(view.protos[node]) > largest
    ]
    return constants[np.isin(view.kinds[constants], extreme)].tolist()  # type: ignore[no-any-return]


def _largest(constant: Any) -> float:
    """The largest absolute value of a float32 constant, infinities left out; 0 for any other constant."""
    value = constant.attr.get("value")  # a look-up by index would add what a broken graph lacks
    if value is None or value.tensor.dtype != datatypes.FLOAT:
        return 0.0
    content = value.tensor.tensor_content
    if content:
        values = np.frombuffer(content, "<f4", count=len(content) // 4)
    else:
        values = np.asarray(value.tensor.float_val, np.float32)
    return float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
