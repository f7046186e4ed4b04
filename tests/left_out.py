"""Rules that are left out, to see what they are worth."""

import contextlib
from unittest import mock

from amp_tf.painting import paint


@contextlib.contextmanager
def without(names):
    """Paints without some rows of the rules, named."""
    names = frozenset(names)
    assert names <= {row.name for row in paint.RULES}
    with contextlib.ExitStack() as stack:
        for step in ("LISTING", "HOLDING", "KEEPING", "DENYING", "PASSES", "SETTLING", "RULES"):
            rows = tuple(row for row in getattr(paint, step) if row.name not in names)
            stack.enter_context(mock.patch.object(paint, step, rows))
        yield


def differing(*differences):
    """The names of the rows that make some differences from TensorFlow's pass, or any if none is
    named.
    """
    return tuple(
        row.name
        for row in paint.RULES
        if row.difference and (not differences or row.difference in differences)
    )
