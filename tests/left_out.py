"""Rules that are left out, to see what they are worth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from unittest import mock

from amp_tf.painting import paint


@contextlib.contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Paints without some rows of the rules, named."""
    names = frozenset(names)
    assert names <= {row.name for row in paint.RULES}
    with mock.patch.object(
        paint, "RULES", tuple(row for row in paint.RULES if row.name not in names)
    ):
        yield


def differing(*differences: str) -> tuple[str, ...]:
    """The names of the rows that make some differences from TensorFlow's pass, or any if none is
    named.
    """
    return tuple(
        row.name
        for row in paint.RULES
        if row.difference and (not differences or row.difference in differences)
    )
