from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from amp_tf.hooks import imports
from tests.hooks import running


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = "amp_tf_test_module"
    (tmp_path / f"{name}.py").write_text("import sys\nvalue = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_finder", imports._AfterImport())
    importlib.invalidate_caches()
    yield name
    sys.modules.pop(name, None)
    sys.meta_path.remove(imports._finder)


def test_an_action_runs_once_after_the_module_was_executed_and_leaves_nothing_on_it(module):
    seen: list[int] = []

    def act(name):
        seen.append(sys.modules[name].value)
        imports.after_import(name, lambda name: seen.append(8))

    for _ in range(2):
        imports.after_import(module, act)
    assert importlib.util.find_spec(module) is not None  # to look for a module is not to import it
    assert seen == []
    loaded = importlib.import_module(module)
    assert seen == [7, 8]
    assert sys.meta_path.count(imports._finder) == 1
    assert "exec_module" not in vars(loaded.__loader__)
    assert type(loaded.__loader__).__module__.startswith(("_frozen", "importlib"))


def test_an_action_runs_at_once_when_the_module_is_there_already(module):
    importlib.import_module(module)
    seen: list[str] = []

    def outer(name):
        seen.append("outer")
        imports.after_import(name, lambda name: seen.append("inner"))

    imports.after_import(module, outer)
    assert seen == ["outer", "inner"]


def test_an_action_that_raises_is_told_and_the_import_goes_on(module, capsys):
    seen: list[str] = []

    def broken(name):
        raise RuntimeError("made to")

    imports.after_import(module, broken)
    imports.after_import(module, seen.append)
    assert importlib.import_module(module).value == 7
    assert seen == [module]
    assert capsys.readouterr().err == "amp_tf: stays off: RuntimeError: made to\n"


def test_an_action_that_is_added_while_a_watched_module_is_imported_runs_at_its_end(
    module, tmp_path
):
    (tmp_path / f"{module}.py").write_text(
        "from amp_tf.hooks import imports\n"
        "seen = []\nimports.after_import(__name__, seen.append)\nbefore = list(seen)\n"
    )
    imports.watch(module)
    loaded = importlib.import_module(module)
    assert (loaded.before, loaded.seen) == ([], [module])


def test_neither_a_forgotten_action_runs_nor_one_of_a_module_that_fails(module, tmp_path):
    seen: list[str] = []
    (tmp_path / f"{module}.py").write_text("raise ValueError('its own')\n")
    imports.after_import(module, seen.append)
    with pytest.raises(ValueError, match="its own"):
        importlib.import_module(module)
    imports.forget(seen.append)
    (tmp_path / f"{module}.py").write_text("value = 7\n")
    importlib.import_module(module)
    assert seen == []


TWO_THREADS = """
import faulthandler, threading, time
import amp_tf
from amp_tf.hooks import imports
faulthandler.dump_traceback_later(100, exit=True)
is_nearly_done, is_done = threading.Event(), threading.Event()
imports.after_import("keras", lambda name: is_nearly_done.set() or is_done.wait(20))
amp_tf.enable(precision="float16")
thread = threading.Thread(target=__import__, args=("keras",))
thread.start()
is_nearly_done.wait(60)
imports.after_import("tf_keras", lambda name: is_done.set())
import tf_keras
thread.join()
import keras
print([hasattr(library.Model.compile, "__wrapped__") for library in (keras, tf_keras)])
"""


def test_two_threads_that_import_keras_and_tf_keras_at_once_do_not_wait_for_each_other(
    site_folder,
):
    ended = running.run(["-c", TWO_THREADS], site_folder, {}, fresh="it imports TensorFlow itself")
    assert ended.out == "[True, True]\n"
