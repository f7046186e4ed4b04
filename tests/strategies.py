"""How TensorFlow makes loops."""

import contextlib

from tensorflow.python.ops import control_flow_util


@contextlib.contextmanager
def lowered_control_flow():
    """Loops made inside come as Enter, Merge, Switch …, the form that Grappler sees, not as one
    While.
    """
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before
