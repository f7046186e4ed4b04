from __future__ import annotations

import argparse
import types

import pytest

import amp_tf
from amp_tf.cli import main as command
from amp_tf.errors import ConfigError


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"amp-tf {amp_tf.__version__}\n"


def test_a_wrong_command_ends_with_2_and_names_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["bake"])
    assert ended.value.code == 2
    assert "'run'" in capsys.readouterr().err


def test_every_command_that_is_there_has_a_parser_and_a_help_line() -> None:
    text = command.parser().format_help()
    assert "run a command with amp_tf on" in text


def test_an_error_of_amp_tf_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise ConfigError("'x' is not a valid value", where="--precision", fix="Valid values: a, b")

    fake = types.SimpleNamespace(add_parser=lambda subparsers: subparsers.add_parser("run"), run=run)
    monkeypatch.setattr(command, "COMMANDS", ("run",))
    monkeypatch.setattr(command.importlib, "import_module", lambda name: fake)
    assert command.main(["run"]) == 1
    assert capsys.readouterr().err == "amp-tf run: --precision: 'x' is not a valid value. Valid values: a, b.\n"
