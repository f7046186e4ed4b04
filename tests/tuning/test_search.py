"""The search finds small sets that suffice, with few runs."""

from __future__ import annotations

import random

import pytest

from amp_tf.lock import Decision, Layer
from amp_tf.tools.search import Item, Items, OutOfRunsError, find_smallest


def leaf(name: str, operations: float = 1.0) -> Item:
    return Item(name, (Decision(Layer(name)),), operations)


def whole(name: str, parts: Items) -> Item:
    return Item(name, tuple(one for part in parts for one in part.decisions), sum(p.operations for p in parts), parts)


def leaves(items: Items) -> set[str]:
    return {name for item in items for name in (leaves(item.parts) if item.parts else {item.name})}


class Asked:
    """Whether a set holds all leaves that are needed; counts the questions, and answers a set once."""

    def __init__(self, needed: set[str], most: int = 10_000) -> None:
        self.needed, self.most = needed, most
        self.known: dict[frozenset[str], bool] = {}

    def __call__(self, items: Items) -> bool:
        key = frozenset(leaves(items))
        if key not in self.known:
            if len(self.known) >= self.most:
                raise OutOfRunsError
            self.known[key] = self.needed <= key
        return self.known[key]


ITEMS = tuple(leaf(f"i{number}") for number in range(31))


@pytest.mark.parametrize(("needed", "most"), [({"i0"}, 1), ({"i1"}, 4), ({"i0", "i2"}, 6), ({"i30"}, 16)])
def test_what_is_ranked_first_is_found_with_few_runs(needed, most):
    asked = Asked(needed)
    found = find_smallest(ITEMS, asked)
    assert leaves(found.items or ()) == needed
    assert found.is_minimal
    assert len(asked.known) <= most


@pytest.mark.parametrize("seed", range(30))
def test_any_set_is_found_and_minimal(seed):
    draw = random.Random(seed)
    needed = {f"i{number}" for number in draw.sample(range(31), draw.randint(1, 5))}
    found = find_smallest(ITEMS, Asked(needed))
    assert leaves(found.items or ()) == needed
    assert found.is_minimal


def test_items_are_divided_down_to_their_smallest_parts():
    blocks = tuple(
        whole(f"b{n}", tuple(whole(f"b{n}/l{m}", (leaf(f"b{n}/l{m}/x"), leaf(f"b{n}/l{m}/y"))) for m in range(4)))
        for n in range(3)
    )
    needed = {"b1/l2/y", "b1/l3/x"}
    found = find_smallest(blocks, Asked(needed))
    assert [item.name for item in found.items or ()] == ["b1/l2/y", "b1/l3/x"]


def test_an_item_all_of_whose_parts_are_needed_stays_whole():
    item = whole("layer", (leaf("a"), leaf("b")))
    found = find_smallest((item, leaf("c")), Asked({"a", "b"}))
    assert found.items == (item,)


def test_an_earlier_result_is_where_the_search_begins():
    asked = Asked({"i20", "i25"})
    found = find_smallest(ITEMS, asked, first=(ITEMS[20], ITEMS[25]))
    assert leaves(found.items or ()) == {"i20", "i25"}
    assert len(asked.known) == 3


def test_an_earlier_result_that_does_not_suffice_any_more_is_left():
    assert leaves(find_smallest(ITEMS, Asked({"i3"}), first=(ITEMS[20],)).items or ()) == {"i3"}


@pytest.mark.parametrize("most", range(12))
def test_out_of_runs_the_best_set_so_far_is_given(most):
    needed = {"i2", "i5"}
    found = find_smallest(ITEMS, Asked(needed, most))
    if found.items is not None:
        assert needed <= leaves(found.items)
    assert not found.is_minimal
    assert (found.items is None) is (most < 4)
