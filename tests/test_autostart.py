"""The line in amp_tf.pth: what it costs when off, and that it never stands in the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from amp_tf import _autostart, config
from tests.hooks import running

LOADED = "import sys; print(sorted(name for name in sys.modules if name.startswith('amp_tf')))"
LIGHT = "['amp_tf', 'amp_tf._autostart', 'amp_tf.hooks', 'amp_tf.hooks.imports']"
SWITCHES = [row.name for row in config.ENV_VARS if row.name.startswith("TF_ENABLE_")]


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        *({name: value} for name in SWITCHES for value in ("", "0", "false")),
        {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "AMP_TF_DISABLE": "1"},
        {"AMP_TF_PRECISION": "float16"},
    ],
    ids=str,
)
def test_nothing_of_amp_tf_is_loaded_when_it_is_off(variables: dict[str, str], site_folder: Path) -> None:
    ended = running.run(["-c", LOADED], site_folder, variables)
    assert (ended.status, ended.out.strip(), ended.err) == (0, "[]", "")


@pytest.mark.parametrize("name", SWITCHES)
def test_only_the_finder_is_loaded_before_tensorflow_is_imported(name: str, site_folder: Path) -> None:
    code = f"{LOADED}; print([name for name in ('typing', 'dataclasses', 'inspect') if name in sys.modules])"
    without = running.run(["-c", code], site_folder, {})
    ended = running.run(["-c", code], site_folder, {name: "1"})
    assert ended.status == 0
    assert ended.err == ""
    loaded, heavy = ended.out.strip().splitlines()
    assert loaded == LIGHT
    assert heavy == without.out.strip().splitlines()[1]


def test_a_bad_value_ends_in_one_message_and_a_float32_program(site_folder: Path) -> None:
    program = str(running.PROGRAMS / "custom_loop.py")
    ended = running.run([program], site_folder, {"TF_ENABLE_AUTO_MIXED_PRECISION": "maybe"})
    plain = running.run([program], site_folder, {})
    assert ended.status == 0
    assert ended.result == plain.result
    assert [line for line in ended.err.splitlines() if "amp_tf" in line] == [
        "WARNING:absl:amp_tf: stays off, the program runs in float32: TF_ENABLE_AUTO_MIXED_PRECISION: 'maybe' is not a "
        "valid value. Valid values: 1, true, 0, false."
    ]


def test_start_twice_adds_one_finder_and_one_action(monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_tf.hooks import imports

    finder = imports._AfterImport()
    monkeypatch.setattr(imports, "_finder", finder)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "tensorflow"})
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "1")
    monkeypatch.delenv("AMP_TF_DISABLE", raising=False)
    for _ in range(2):
        _autostart.start()
    assert sys.meta_path.count(finder) == 1
    assert [len(finder.actions[name]) for name in finder.actions] == [1]


def test_start_never_raises(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from amp_tf.hooks import imports

    monkeypatch.setattr(imports, "after_import", None)  # a damaged installation
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "1")
    monkeypatch.delenv("AMP_TF_DISABLE", raising=False)
    _autostart.start()
    assert capsys.readouterr().err.startswith("amp_tf: stays off: TypeError")


def test_the_pth_is_one_ascii_line_that_an_import_starts() -> None:
    text = (running.ROOT / "amp_tf.pth").read_bytes()
    assert text.isascii()
    assert text.startswith(b"import ")
    assert text.count(b"\n") == 1
    assert all(name.encode() in text for name in SWITCHES)


def test_the_start_file_names_what_the_pth_calls() -> None:
    """PEP 829: one ``module:callable`` for each line."""
    module, _, name = (running.ROOT / "amp_tf.start").read_text(encoding="utf-8").strip().partition(":")
    assert module == _autostart.__name__
    assert getattr(_autostart, name) is _autostart.start


def test_autostart_knows_every_switch() -> None:
    assert list(_autostart._SWITCHES) == SWITCHES


def test_the_pth_line_runs_as_python_runs_it(tmp_path: Path) -> None:
    """``site`` executes the line inside a function; a name that the line binds must not be needed in a nested scope."""
    (tmp_path / "amp_tf.pth").write_bytes((running.ROOT / "amp_tf.pth").read_bytes())
    code = f"import site; site.addsitedir({str(tmp_path)!r}); site.addsitedir({str(tmp_path)!r}); {LOADED}"
    environ = running.environment(tmp_path, {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"})
    ended = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == LIGHT
    assert ended.stderr == ""
