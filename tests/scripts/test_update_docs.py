"""What scripts/update_docs writes is true; .ci/run asks whether the documents hold it."""

from __future__ import annotations

import graphlib
from pathlib import Path

import pytest

import amp_tf
from amp_tf.oplists.hardware import Hardware

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def test_the_journey_ends_where_the_rewrite_does() -> None:
    import journey

    result = amp_tf.rewrite(
        journey.make_graph(), amp_tf.AmpConfig(), hardware=Hardware(cpu_has_bf16=True), preserve=["out"]
    )
    apply = journey.contents().partition("\napply:")[2].partition("\nverify:")[0]
    assert [line.strip() for line in apply.splitlines()[1:]] == list(journey.short(result.graph.node))


def package(folder: Path, **modules: str) -> Path:
    """A checkout with these modules; two underscores stand for a dot."""
    for name, text in modules.items():
        path = folder / "amp_tf" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_rooms_are_what_modules_import_inside_functions_too(tmp_path: Path) -> None:
    import rooms

    root = package(
        tmp_path,
        low="",
        middle__one="from amp_tf import low",
        middle__two="from amp_tf.middle import one\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import amp_tf.top",
        top="def f():\n    from amp_tf.middle.two import x\n    import amp_tf.low",
    )
    found = rooms.find_rooms(root)
    assert found == {"low": set(), "middle": {"low"}, "top": {"low", "middle"}}
    assert list(found) == ["low", "middle", "top"]
    assert rooms.picture(found).splitlines()[2:-1] == ["    top --> middle", "    middle --> low", "    low"]


def test_a_circle_is_refused(tmp_path: Path) -> None:
    import rooms

    with pytest.raises(graphlib.CycleError):
        rooms.find_rooms(package(tmp_path, a="import amp_tf.b", b="from amp_tf.a import x"))


def test_no_modules_import_each_other_in_a_circle() -> None:
    import rooms

    known = rooms.modules(ROOT)
    used = {name: rooms.imports(tree, known) - {name} for name, tree in known.items()}
    assert set(graphlib.TopologicalSorter(used).static_order()) == set(known)
