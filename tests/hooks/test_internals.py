"""Each name inside of TensorFlow and Keras that amp_tf touches has a row, and is there."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tf_keras

import amp_tf
from amp_tf.hooks import internals, native, reads
from amp_tf.hooks.internals import Internal
from amp_tf.hooks.patches import Patches

ROOT = Path(amp_tf.__file__).parent
NAMES = []
for row in reads.rows():
    NAMES += [(home, name, row) for home, name in row.each()]
#: of libraries, what no interface promises; TensorFlow promises the formats of its messages
INSIDE = ("tensorflow.python.", "keras.src.", "tf_keras.src.")
#: private names of Python's own
#: Private names of Python itself; python -m calls the last.
OF_PYTHON = {
    "_current_exceptions",
    "_current_frames",
    "_fields",
    "_initializing",
    "_run_module_as_main",
    "_value_",
}


def is_there(home: str, name: str) -> bool:
    """Tells whether a library has a name; what methods set on an object counts, too."""
    if (home, name) in internals.C_API.each():
        return hasattr(native.tensorflow_library(), name)
    path, _, attribute = name.rpartition(".")
    try:
        owner = found_in(home, path)
    except (ImportError, AttributeError):
        return False
    return hasattr(owner, attribute) or is_set_by_methods(owner, attribute)


def found_in(home: str, path: str) -> Any:
    """What a module has at a path, such as a class and a method; itself if that is empty."""
    found = importlib.import_module(home)
    for part in filter(None, path.split(".")):
        found = getattr(found, part)
    return found


def is_set_by_methods(owner: type, attribute: str) -> bool:
    for base in getattr(owner, "__mro__", ())[:-1]:
        try:
            if f".{attribute} = " in inspect.getsource(base):
                return True
        except (OSError, TypeError):  # a class in C++
            continue
    return False


def is_too_old(home: str, since: str) -> bool:
    if not since:
        return False
    version = importlib.import_module(home.partition(".")[0]).__version__
    numbers = [int(part) for part in version.split(".")[:2]]
    return numbers < [int(part) for part in since.split(".")]


@pytest.mark.parametrize(
    ("home", "name", "row"), [pytest.param(*each, id=".".join(each[:2])) for each in NAMES]
)
def test_every_name_is_in_the_installed_libraries(home, name, row):
    if is_too_old(home, row.since):
        pytest.skip(f"since {row.since}")
    assert is_there(home, name), (
        f"{home} has no {name} any more. amp_tf needs it to {row.why}; without it {row.without}."
    )


@pytest.mark.parametrize(
    ("home", "name"),
    [
        ("keras", "Model.compil"),
        ("keras.optimizers", "Optimizer._itterations"),
        ("tensorflow.python.framework.operations", "Graph"),
        ("libtensorflow_cc.so.2", "TF_NewStatuss"),
    ],
)
def test_a_misspelt_name_is_not_found(home, name):
    assert not is_there(home, name)


def test_the_functions_of_the_library_are_those_that_are_called():
    assert {name for _, name in internals.C_API.each()} == set(native._FUNCTIONS)


def test_a_row_says_which_name_is_gone_and_what_that_means():
    row = Internal("tensorflow: nn.relu nn.no_such", "show it", "nothing is shown")
    patches = Patches()
    with pytest.raises(AttributeError) as caught:
        row.patch(patches, lambda original, *args: original(*args))
    assert not patches, "the name that is there was replaced nevertheless"
    assert str(caught.value) == "tensorflow has no nn.no_such in this version: nothing is shown"
    row = Internal("tensorflow.no_such: relu", "show it", "nothing is shown")
    with pytest.raises(AttributeError, match=r"tensorflow\.no_such has no relu"):
        row.patch(Patches(), lambda original, *args: original(*args))


def test_a_row_is_patched_in_the_libraries_that_are_imported(monkeypatch):
    row = Internal("keras tf_keras: Model.count_params", "show it", "nothing is shown")
    monkeypatch.setitem(internals._LAST_NAMES, "tf_keras", "not_there_yet")
    patches = Patches()
    before = tf_keras.Model.count_params
    assert row.patch(patches, lambda original, model: -1)
    assert not row.patch(patches, lambda original, model: -1)
    assert keras.Sequential().count_params() == -1
    assert tf_keras.Model.count_params is before
    patches.restore()
    with pytest.raises(ValueError, match="built"):
        keras.Sequential().count_params()


def names_read(scope: ast.AST, name: str) -> set[str]:
    """The attributes of a name that code reads."""
    found = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == name:
            found.add(node.attr)
    return found


def inner_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the names inside of libraries that a module's code reads, each with its home."""
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module):
            lines = scope.body
        elif isinstance(scope, ast.FunctionDef):
            lines = list(ast.walk(scope))
        else:
            continue
        for node in lines:
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(INSIDE):
                yield from names_of_import(node, scope)


def names_of_import(node: ast.ImportFrom, scope: ast.AST) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        module = f"{node.module}.{alias.name}"
        try:
            importlib.import_module(module)
        except ImportError:
            yield str(node.module), alias.name
            continue
        for name in names_read(scope, alias.asname or alias.name):
            yield module, name


def test_every_name_inside_of_a_library_that_a_room_reads_has_a_row():
    listed = {(home, name.partition(".")[0]) for home, name, _ in NAMES}
    read = set()
    for path in ROOT.rglob("*.py"):
        read.update(inner_names(ast.parse(path.read_text(encoding="utf-8"))))
    assert len(read) > 30
    assert read - listed == set()


def private_attributes(trees):
    """The private attributes that code reads by name and that amp_tf does not define itself."""
    own = set()
    read = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute):
                is_self = getattr(node.value, "id", "") == "self"
                is_set = is_self and isinstance(node.ctx, ast.Store)
                (own if is_set else read).add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                read.update(part.value for part in node.args if isinstance(part, ast.Constant))
    for name in sorted(map(str, read - own)):
        if name.startswith("_") and not name.endswith("__") and not name.startswith("_amp_tf_"):
            yield name


def test_every_private_attribute_that_a_room_reads_has_a_row():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")]
    private = {*private_attributes(trees)}
    listed = {part for _, name, _ in NAMES for part in name.split(".")}
    assert len(private) > 20
    assert private - listed - OF_PYTHON == set()


def test_every_row_is_complete():
    for home, name, row in NAMES:
        assert row.why, (home, name)
        assert row.without, (home, name)
    assert len({(home, name) for home, name, _ in NAMES}) == len(NAMES)


def test_arguments_that_hooks_name_have_the_names_of_the_libraries(monkeypatch):
    """Callers may pass them by these, as tf.data's service does."""
    hooks = []
    patch = Internal.patch

    def note(row, patches, ours):
        hooks.append((row, ours))
        return patch(row, patches, ours)

    monkeypatch.setattr(Internal, "patch", note)
    with amp_tf.enable(precision="float16"), amp_tf.scope("float32"):
        pass
    named = 0
    for row, ours in hooks:
        _, *names = inspect.signature(ours).parameters.values()
        for home, name in row.each():
            theirs = list(inspect.signature(found_in(home, name)).parameters)
            for number, parameter in enumerate(names):
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                    assert theirs[number] == parameter.name, f"{home}.{name}: {theirs}"
                    named += 1
    assert named > 10
