"""What is put in place is given back whole, and what others put around it stays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from amp_tf.hooks.patches import Patches, calling


def make_classes() -> tuple[type, type]:
    class Base:
        def own(self, text: str) -> str:
            """Says it."""
            return f"own {text}"

        def inherited(self, text: str) -> str:
            return f"inherited {text}"

    class Derived(Base):
        def own(self, text: str) -> str:
            return f"derived {text}"

    return Base, Derived


def saying(word: str) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def method(self: Any, text: str) -> str:
            return f"{word} {original(self, text)}"

        return method

    return make


def test_a_method_is_replaced_once_and_looks_like_the_original() -> None:
    base, _ = make_classes()
    patches = Patches()
    assert not patches
    assert patches.put(base, "own", saying("ours"))
    assert not patches.put(base, "own", saying("again"))
    assert patches
    assert base().own("x") == "ours own x"
    assert (base.own.__name__, base.own.__doc__) == ("own", "Says it.")


def test_what_the_owner_had_itself_is_put_back() -> None:
    base, derived = make_classes()
    before = vars(base)["own"], vars(derived)["own"]
    patches = Patches()
    for owner in (base, derived):
        patches.put(owner, "own", saying("ours"))
    patches.restore()
    patches.restore()
    assert (vars(base)["own"], vars(derived)["own"]) == before
    assert not patches


def test_what_the_owner_had_from_its_base_class_is_gone_again() -> None:
    base, derived = make_classes()
    patches = Patches()
    patches.put(derived, "inherited", saying("ours"))
    assert (derived().inherited("x"), base().inherited("x")) == ("ours inherited x", "inherited x")
    patches.restore()
    assert "inherited" not in vars(derived)
    assert derived().inherited("x") == "inherited x"


def test_a_wrapper_of_somebody_else_stays_with_ours_inside() -> None:
    base, _ = make_classes()
    patches = Patches()
    patches.put(base, "own", saying("ours"))
    theirs = base.own = saying("theirs")(base.own)  # type: ignore[attr-defined]
    patches.restore()
    assert vars(base)["own"] is theirs
    assert base().own("x") == "theirs ours own x"


def test_ours_is_used_again_where_it_lies_inside_a_wrapper_of_somebody_else() -> None:
    base, _ = make_classes()
    patches = Patches()
    patches.put(base, "own", saying("ours"))
    theirs = base.own = saying("theirs")(base.own)  # type: ignore[attr-defined]
    assert not patches.put(base, "own", saying("again"))
    patches.restore()
    assert patches.put(base, "own", saying("again"))
    assert not patches.put(base, "own", saying("again"))
    assert patches
    assert vars(base)["own"] is theirs
    assert base().own("x") == "theirs ours own x"


def test_an_original_that_somebody_else_put_back_is_replaced_again() -> None:
    base, _ = make_classes()
    original = vars(base)["own"]
    patches = Patches()
    patches.put(base, "own", saying("ours"))
    base.own = original  # type: ignore[attr-defined]
    assert patches.put(base, "own", saying("again"))
    assert base().own("x") == "again own x"
    patches.restore()
    assert vars(base)["own"] is original


def test_an_original_that_somebody_else_put_back_stays() -> None:
    base, derived = make_classes()
    original = vars(base)["own"]
    patches = Patches()
    patches.put(base, "own", saying("ours"))
    patches.put(derived, "inherited", saying("ours"))
    base.own = original  # type: ignore[attr-defined]
    del derived.inherited  # type: ignore[attr-defined]
    patches.restore()
    assert vars(base)["own"] is original
    assert "inherited" not in vars(derived)


def test_functions_of_a_module_are_patched_too() -> None:
    import string

    before = string.capwords
    patches = Patches()
    patches.put(string, "capwords", lambda original: lambda text: original(text) + "!")
    assert string.capwords("a b") == "A B!"
    patches.restore()
    assert string.capwords is before


def test_a_function_of_ours_gets_what_is_bound_and_the_original_before_the_arguments() -> None:
    def own(word: str, original: Any, speaker: Any, /, text: str) -> str:
        return f"{word} {original(speaker, text=text)}"

    base, _ = make_classes()
    patches = Patches()
    patches.put(base, "own", calling(own, "ours"))
    assert base().own(text="x") == "ours own x"
    assert base.own.__doc__ == "Says it."
    patches.restore()
    assert base().own("x") == "own x"
