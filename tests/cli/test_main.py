"""The ``amp-tf`` command as a whole, and the options that its commands share."""

import argparse
import io
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import amp_tf
from amp_tf.cli import main as command
from amp_tf.cli.commands import add_settings
from amp_tf.cli.options import read_config
from amp_tf.cli.run import run_script
from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError
from amp_tf.hooks.state import current
from tests import processes

FULL = "[Errno 28] No space left on device"
FULL_ERROR = (28, "No space left on device")  # of a file that is not stdout


@pytest.mark.parametrize(
    ("argument", "status", "out", "error"),
    [
        ("--version", 0, f"amp-tf {amp_tf.__version__}\n", ""),
        ("bake", 2, "", "'run'"),
        ("--help", 0, "run a command", ""),
    ],
)
def test_what_argparse_answers(argument, status, out, error, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([argument])
    assert ended.value.code == status
    said = capsys.readouterr()
    assert out in said.out
    assert error in said.err


@pytest.mark.parametrize("name", ["rewrite", "explain", "report", "compare", "tune", "time"])
def test_a_help_has_the_settings_that_are_options_and_says_where_the_others_are(name, capsys):
    with pytest.raises(SystemExit):
        command.main([name, "--help"])
    text = capsys.readouterr().out
    assert "--precision" in text
    assert "--keep-float32" in text
    assert text.endswith("those of the environment variables (docs/variables.md).\n")


def test_an_option_is_not_guessed_by_its_beginning(capsys):
    with pytest.raises(SystemExit):
        command.main(["explain", "g.pb", "node", "--keep", "a"])
    error = capsys.readouterr().err
    assert error.startswith("usage: amp-tf explain ")
    assert "amp-tf explain: error: unrecognized arguments: --keep a" in error


@pytest.mark.parametrize("number", ["0", "-1", "nan", "many"])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("time", "--rounds"),
        ("time", "--minutes"),
        ("tune", "--max-runs"),
        ("compare", "--steps"),
        ("calibrate", "--seconds"),
    ],
)
def test_an_option_for_a_number_takes_one_above_zero(name, option, number, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([name, option, number, "--", "python"])
    assert ended.value.code == 2
    assert f"amp-tf {name}: error: argument {option}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["rewrite", "g.pb", "-"],
        ["compare", "--output", "-", "--", "python"],
        ["tune", "--metric", "loss", "--max-rise", "1", "--output", "-", "--", "python"],
        ["calibrate", "--output", "-"],
    ],
)
def test_a_file_to_write_is_not_stdout_which_has_the_text_of_the_command(words, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert "name a file, or ./- for one of that name" in capsys.readouterr().err


def test_an_error_of_amp_tf_is_told_without_a_traceback(monkeypatch, capsys):
    def run(args):
        raise ConfigError("'x' is not a valid value", where="--precision", fix="Valid values: a, b")

    monkeypatch.setitem(sys.modules, "amp_tf.cli.run", types.SimpleNamespace(run=run))
    assert command.main(["run"]) == 1
    assert (
        capsys.readouterr().err
        == "amp-tf run: --precision: 'x' is not a valid value. Valid values: a, b.\n"
    )


def run(code, **options):
    """Runs the command ``fake``, which does what the code says."""
    program = f"""
import os, sys, types
from amp_tf.cli import commands, main as command
def run(args):
    {code}
    return 0
sys.modules["amp_tf.cli.fake"] = types.SimpleNamespace(run=run)
commands.COMMANDS.clear()
commands.COMMANDS["fake"] = commands.Command("fake.run", "", "", lambda parser: None)
sys.exit(command.main(["fake"]))
"""
    options = {"stdout": subprocess.PIPE, **options}
    return processes.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, timeout=60, **options
    )


def test_a_reader_that_has_enough_ends_a_command_without_a_word_and_with_the_status_of_a_shell():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        for code in ("print(1)", "print(1, flush=True)"):
            ended = run(code, stdout=writing)
            assert (ended.returncode, ended.stderr) == (141, "")
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    ("code", "out", "status", "error"),
    [
        ("raise KeyboardInterrupt", "/dev/null", 130, "amp-tf fake: interrupted\n"),
        ("print(1)", "/dev/full", 1, f"amp-tf fake: {FULL}: 'stdout'\n"),
        ("print('1' * 10**5)", "/dev/full", 1, f"amp-tf fake: {FULL}: 'stdout'\n"),
        (f"raise OSError(*{FULL_ERROR})", "/dev/null", 1, f"amp-tf fake: {FULL}\n"),
        # Python makes None of a descriptor that is closed.
        ("os.close(1); sys.stdout = None; print(1)", "/dev/null", 0, ""),
        ("print(chr(0xDCFF))", "/dev/null", 0, ""),  # of a file name that is no UTF-8
    ],
)
def test_a_command_ends_with_the_status_of_a_shell(code, out, status, error):
    with open(out, "w") as stdout:
        ended = run(code, stdout=stdout)
    assert (ended.returncode, ended.stderr) == (status, error)


def start(arguments, folder, fresh=""):
    """Runs Python in a folder, where a module of it is found before any other of its name."""
    (folder / "g.pb").write_bytes(b"\n")
    environ = {**os.environ, "PYTHONPATH": str(Path(amp_tf.__file__).parents[1])}
    command = [sys.executable, *arguments]
    return processes.run(
        command, fresh=fresh, env=environ, cwd=folder, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("module", "arguments", "fresh"),
    [
        ("numpy", ["report", "g.pb"], "it has another NumPy"),
        ("tensorflow", ["explain", "g.pb", "m"], ""),
    ],
)
def test_an_import_that_is_interrupted_ends_likewise(module, arguments, fresh, tmp_path):
    """As if the user pressed Ctrl-C while the command loads itself, or TensorFlow."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal\n"
        # a shell's background jobs ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    ended = start(["-m", "amp_tf.cli.main", *arguments], tmp_path, fresh)
    assert (ended.returncode, ended.stderr) == (130, f"amp-tf {arguments[0]}: interrupted\n")


@pytest.mark.parametrize(
    ("error", "command"),
    [
        ("ModuleNotFoundError('No module')", ["rewrite", "g.pb", "out.pb"]),
        ("ModuleNotFoundError('No module')", ["explain", "g.pb", "m"]),
        ("RuntimeError('half an installation')", ["doctor"]),
    ],
)
def test_without_a_tensorflow_that_works_a_command_says_what_to_install(error, command, tmp_path):
    (tmp_path / "tensorflow.py").write_text(f"raise {error}\n")
    ended = start(["-m", "amp_tf.cli.main", *command], tmp_path)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    (line,) = ended.stderr.splitlines()
    begin = f"amp-tf {command[0]}: TensorFlow cannot be imported from {sys.executable}: "
    assert line.startswith(begin)
    assert ("RuntimeError: half an installation" in line) is (command == ["doctor"])
    assert line.endswith("for a machine with an NVIDIA GPU.")
    assert not (tmp_path / "out.pb").exists()
    for_cpus, for_gpus = re.findall(r"'(tensorflow\S+)'", line)
    project = Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    assert f'["{for_cpus}"]' in project
    assert f'["{for_gpus}"]' in project


def test_help_is_printed_where_the_output_is_ascii(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    with pytest.raises(SystemExit) as ended:
        command.main(["run", "--help"])
    assert ended.value.code == 0
    assert run_script(["--help"]) == 0
    print(end="", flush=True)


def test_the_summary_of_a_program_does_not_follow_a_command(tmp_path):
    (tmp_path / "in.pb").write_bytes(b"\x22\x00")  # a graph with nothing but versions
    files = [str(tmp_path / "in.pb"), str(tmp_path / "out.pb")]
    program = (
        "import sys, amp_tf; amp_tf.enable(); from amp_tf.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    ended = processes.run(
        [sys.executable, "-c", program, "rewrite", *files], capture_output=True, text=True
    )
    assert ended.returncode == 0
    assert ended.stdout.startswith("1 graph, 0 of 0 nodes converted")
    assert "nothing was converted" not in ended.stderr
    alone = "import tensorflow, amp_tf; amp_tf.enable()"
    alone = processes.run([sys.executable, "-c", alone], capture_output=True, text=True)
    assert "INFO:absl:amp_tf: nothing was converted: TensorFlow ran no graph" in alone.stderr


def _config(*arguments):
    parser = argparse.ArgumentParser()
    add_settings(parser)
    return read_config(parser.parse_args(arguments))


def test_options_win_and_patterns_add_up_and_without_options_the_environment_counts(monkeypatch):
    monkeypatch.setenv("AMP_TF_PRECISION", "float16")
    monkeypatch.setenv("AMP_TF_KEEP_FLOAT32", "a,b")
    assert _config() == AmpConfig(precision="float16", keep_float32=("a", "b"))
    lists = ("--keep-float32", "b{1,2},c", "--keep-float32", "d")
    monkeypatch.setenv("AMP_TF_PRECISION", "bogus")  # where the option wins nobody reads it
    expected = AmpConfig("bfloat16", target="gpu", keep_float32=("a", "b", "b{1,2}", "c", "d"))
    assert _config("--precision", "bf16", "--target", "gpu", *lists) == expected
    with pytest.raises(ConfigError, match="AMP_TF_PRECISION: 'bogus' is not a valid value"):
        _config(*lists)
    monkeypatch.delenv("AMP_TF_PRECISION")
    with pytest.raises(ConfigError, match="is not a regular expression"):
        _config("--keep-float32", "(")


def test_a_misspelt_variable_is_told(monkeypatch, log):
    monkeypatch.setattr(current(), "warned", set())
    monkeypatch.setenv("AMP_TF_PRECISON", "float16")
    assert _config() == AmpConfig()
    assert log("AMP_TF_PRECISON: this is not a variable of amp_tf. Write AMP_TF_PRECISION, if")


def test_what_the_output_cannot_encode_is_written_as_an_escape(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    said = types.SimpleNamespace(run=lambda args: print("1.50 ± 0.03, größe") or 0)
    monkeypatch.setitem(sys.modules, "amp_tf.cli.run", said)
    assert command.main(["run"]) == 0
    assert written.getvalue() == b"1.50 \\xb1 0.03, gr\\xf6\\xdfe\n"


def test_where_stderr_is_closed_no_file_gets_its_number_and_nothing_is_printed_elsewhere():
    code = """
    print("log", file=sys.stderr, flush=True)
    print(sys.stderr.isatty(), os.open("/dev/null", os.O_RDONLY) > 2)
"""
    ended = run(code.strip(), preexec_fn=lambda: os.close(2))
    assert (ended.returncode, ended.stdout) == (0, "False True\n")
