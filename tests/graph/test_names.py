"""New names are free, also where the graph has names of that form."""

from __future__ import annotations

from amp_tf.graph.names import FreshNames


def test_a_name_is_made_once_and_is_nobodys() -> None:
    names = FreshNames(["x-0-Fold", "y"], "Fold")
    assert [names.make("x"), names.make("x"), names.make("y")] == ["x-1-Fold", "x-2-Fold", "y-0-Fold"]
