"""Patches are given back whole, and others' patches around them stay."""

import pytest

from amp_tf.hooks.patches import Patches


def make_classes():
    class Base:
        def own(self, text):
            """Says it."""
            return f"own {text}"

        def inherited(self, text):
            return f"inherited {text}"

    class Derived(Base):
        def own(self, text):
            return f"derived {text}"

    return Base, Derived


def saying(word):
    return lambda original, self, text: f"{word} {original(self, text)}"


def test_a_method_is_replaced_once_and_looks_like_the_original():
    base, _ = make_classes()
    patches = Patches()
    assert not patches
    assert patches.put(base, "own", saying("ours"))
    assert not patches.put(base, "own", saying("again"))
    assert patches
    assert base().own("x") == "ours own x"
    assert (base.own.__name__, base.own.__doc__) == ("own", "Says it.")


def test_what_the_owner_or_its_base_class_had_is_put_back():
    base, derived = make_classes()
    own = vars(base)["own"]
    inherited = vars(base)["inherited"]
    derived_own = vars(derived)["own"]
    patches = Patches()
    for owner, name in ((base, "own"), (derived, "own"), (derived, "inherited")):
        patches.put(owner, name, saying("ours"))
    assert derived().inherited(text="x") == "ours inherited x"
    assert base().inherited("x") == "ours inherited x"  # its method is replaced where it stands
    patches.restore()
    patches.restore()
    assert vars(base)["own"] is own
    assert vars(base)["inherited"] is inherited
    assert vars(derived)["own"] is derived_own
    assert "inherited" not in vars(derived)
    assert not patches


def test_a_wrapper_of_somebody_else_stays_with_ours_inside_which_is_used_again():
    base, _ = make_classes()
    patches = Patches()
    patches.put(base, "own", saying("ours"))
    inside = base.own
    theirs = base.own = lambda self, text: f"theirs {inside(self, text)}"
    assert not patches.put(base, "own", saying("again"))
    patches.restore()
    assert vars(base)["own"] is theirs
    assert base().own("x") == "theirs own x"
    assert patches.put(base, "own", saying("again"))
    assert not patches.put(base, "own", saying("again"))
    assert patches
    assert vars(base)["own"] is theirs
    assert base().own("x") == "theirs ours own x"


@pytest.mark.parametrize("again", [False, True])
def test_an_original_that_somebody_else_put_back_stays_unless_it_is_replaced_again(again):
    base, _ = make_classes()
    original = vars(base)["own"]
    patches = Patches()
    patches.put(base, "own", saying("ours"))
    base.own = original
    if again:
        assert patches.put(base, "own", saying("again"))
        assert base().own("x") == "again own x"
    patches.restore()
    assert vars(base)["own"] is original


def test_a_replacement_that_somebody_keeps_does_what_the_original_does_once_it_is_restored():
    base, _ = make_classes()
    patches = Patches()
    patches.put(base, "own", saying("ours"))
    kept = base.own
    assert kept(base(), "x") == "ours own x"
    patches.restore()
    assert kept(base(), "x") == "own x"
    assert patches.put(base, "own", saying("again"))
    assert (base().own("x"), kept(base(), "x")) == ("again own x", "own x")
