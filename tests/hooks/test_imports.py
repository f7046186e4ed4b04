from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_tf.hooks import imports


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "amp_tf_test_module"
    (tmp_path / f"{name}.py").write_text("import sys\nvalue = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_finder", imports._AfterImport())
    importlib.invalidate_caches()
    yield name
    sys.modules.pop(name, None)
    sys.meta_path.remove(imports._finder)


def test_action_runs_after_the_module_was_executed(module: str) -> None:
    seen = []
    imports.after_import(module, lambda name: seen.append(sys.modules[name].value))
    assert seen == []
    importlib.import_module(module)
    assert seen == [7]


def test_action_runs_at_once_when_the_module_is_there_already(module: str) -> None:
    importlib.import_module(module)
    seen: list[str] = []
    imports.after_import(module, seen.append)
    assert seen == [module]


def test_an_action_that_an_action_adds_runs_once_when_the_module_is_there_already(module: str) -> None:
    importlib.import_module(module)
    seen: list[str] = []

    def outer(name: str) -> None:
        seen.append("outer")
        imports.after_import(name, lambda name: seen.append("inner"))

    imports.after_import(module, outer)
    assert seen == ["outer", "inner"]


def test_the_same_action_is_added_once(module: str) -> None:
    seen: list[str] = []
    for _ in range(2):
        imports.after_import(module, seen.append)
    importlib.import_module(module)
    assert seen == [module]


def test_nothing_stays_behind_on_the_module(module: str) -> None:
    imports.after_import(module, lambda name: None)
    loaded = importlib.import_module(module)
    assert "exec_module" not in vars(loaded.__loader__)
    assert type(loaded.__loader__).__module__.startswith(("_frozen", "importlib"))


def test_looking_for_a_module_does_not_act(module: str) -> None:
    seen: list[str] = []
    imports.after_import(module, seen.append)
    assert importlib.util.find_spec(module) is not None
    assert seen == []


def test_an_action_that_raises_is_told_and_the_import_goes_on(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def broken(name: str) -> None:
        raise RuntimeError("made to")

    imports.after_import(module, broken)
    imports.after_import(module, seen.append)
    assert importlib.import_module(module).value == 7
    assert seen == [module]
    assert capsys.readouterr().err == "amp_tf: stays off: RuntimeError: made to\n"


def test_an_action_that_an_action_adds_runs_in_the_same_import(module: str) -> None:
    seen: list[str] = []
    imports.after_import(module, lambda name: imports.after_import(name, seen.append))
    importlib.import_module(module)
    assert seen == [module]


def test_an_action_that_is_added_while_a_watched_module_is_imported_runs_at_its_end(
    module: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text(
        "from amp_tf.hooks import imports\n"
        "seen = []\nimports.after_import(__name__, seen.append)\nbefore = list(seen)\n"
    )
    imports.watch(module)
    loaded = importlib.import_module(module)
    assert loaded.before == []
    assert loaded.seen == [module]


def test_a_forgotten_action_does_not_run(module: str) -> None:
    seen: list[str] = []
    imports.after_import(module, seen.append)
    imports.forget(seen.append)
    importlib.import_module(module)
    assert seen == []


def test_a_failing_import_stays_that_failure(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise ValueError('its own')\n")
    seen: list[str] = []
    imports.after_import(module, seen.append)
    with pytest.raises(ValueError, match="its own"):
        importlib.import_module(module)
    assert seen == []


def test_a_loader_of_an_old_kind_imports_the_module_without_amp_tf(module: str, monkeypatch) -> None:
    class OldLoader:
        def load_module(self, name: str):
            return sys.modules.setdefault(name, type(sys)(name))

    class OldFinder:
        def find_spec(self, name, path=None, target=None):
            return importlib.util.spec_from_loader(name, OldLoader()) if name == module else None

    seen: list[str] = []
    imports.after_import(module, seen.append)
    monkeypatch.setattr(sys, "meta_path", [sys.meta_path[0], OldFinder(), *sys.meta_path[1:]])
    with pytest.warns(ImportWarning):
        assert importlib.import_module(module).__name__ == module
    assert seen == []
