"""``amp-tf run -- command`` and ``python -m amp_tf script``, where no .pth file is read."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import amp_tf
from amp_tf.cli import run as command
from amp_tf.config import ENABLE_VAR
from tests import processes

PACKAGE = Path(amp_tf.__file__).resolve().parent
PROGRAMS = Path(__file__).resolve().parents[1] / "hooks" / "programs"
# With -S no .pth file is read; it is Python itself that imports sitecustomize at other times.
LOADED = (
    "import sitecustomize, sys; print([type(each).__name__ for each in sys.meta_path if 'Amp' in "
    "repr(each)])"
)


@pytest.fixture
def target(tmp_path):
    """Makes a folder as ``pip install -t`` does: on PYTHONPATH, where nobody reads .pth files."""
    folder = tmp_path / "target"
    folder.mkdir()
    for part in (PACKAGE, PACKAGE.parent / "_amp_tf_start.py"):
        (folder / part.name).symlink_to(part)
    return folder


def start(arguments, target, **variables):
    environ = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    for name, value in os.environ.items():
        if "MIXED_PRECISION" not in name and "AMP_TF" not in name:
            environ[name] = value
    return processes.run(
        [sys.executable, *arguments],
        env=environ | {"PYTHONPATH": str(target), **variables},
        cwd=target,
        capture_output=True,
        text=True,
        timeout=240,
    )


def run(arguments, target, **variables):
    return start(["-m", "amp_tf.cli.main", "run", *arguments], target, **variables)


def test_the_command_and_its_children_have_amp_tf_on(target):
    child = f"subprocess.run([sys.executable, '-S', '-c', {LOADED!r}])"
    nested = f"import subprocess; {LOADED}; sys.stdout.flush(); {child}"
    ended = run(["--", sys.executable, "-S", "-c", nested], target)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "['AmpTfStart']\n" * 2
    off = run(["--", sys.executable, "-S", "-c", LOADED], target, AMP_TF_DISABLE="1")
    assert off.stdout == "[]\n"


def test_a_python_without_amp_tf_is_left_alone(target):
    code = "import sitecustomize, sys; print('amp_tf' in sys.modules)"
    ended = processes.run(
        [sys.executable, "-S", "-c", code],
        env=command.environment({**os.environ, "PYTHONPATH": ""}),
        cwd=target.parent,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")


def test_the_users_sitecustomize_runs_too(target):
    (target / "sitecustomize.py").write_text("import sys\nsys.users_own = __file__\n")
    code = "import sys; print(sys.users_own); import sitecustomize; print(sitecustomize.__file__)"
    ended = run(["--", sys.executable, "-c", code], target)
    own = str(target / "sitecustomize.py")
    assert ended.stdout.split("\n") == [own, own, ""], ended.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "no command. Write: amp-tf run -- python train.py"),
        (
            ["--", "none"],
            127,
            "none cannot be started: No such file or directory. Check its name and PATH.",
        ),
        (
            ["--", "/etc/passwd"],
            126,
            "/etc/passwd cannot be started: Permission denied. Check its name and PATH.",
        ),
    ],
)
def test_what_cannot_be_run_is_told_with_the_status_of_a_shell(arguments, status, message, target):
    ended = run(arguments, target)
    assert (ended.returncode, ended.stderr.splitlines()) == (status, [f"amp-tf run: {message}"])


def test_the_status_of_the_command_is_kept(target):
    ended = run(["--", "sh", "-c", f"echo ${ENABLE_VAR}; exit 7"], target)
    assert (ended.returncode, ended.stdout) == (7, "1\n")


def test_a_command_of_amp_tf_is_run_unless_there_is_such_a_file(target, tmp_path):
    ended = start(["-m", "amp_tf", "run", "--", "echo", "hello"], target)
    assert (ended.returncode, ended.stdout) == (0, "hello\n")
    (target / "doctor").mkdir()  # such as a folder for its output
    helped = start(["-m", "amp_tf", "doctor", "--help"], target)
    (target / "doctor").rmdir()
    assert (helped.returncode, helped.stdout.split()[:3]) == (0, ["usage:", "amp-tf", "doctor"])
    (target / "doctor").write_text("print('mine')")
    assert start(["-m", "amp_tf", "doctor"], target).stdout == "mine\n"
    (target / "doctor").unlink()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "usage: python -m amp_tf "),
        (
            ["none.py"],
            2,
            "python -m amp_tf: there is no script 'none.py'. Check its name and the current "
            "folder.\n",
        ),
        (["/"], 2, "python -m amp_tf: there is no script '/'. "),
        (
            ["-m", "none.such"],
            1,
            f"{sys.executable}: Error while finding module specification for 'none.such' (",
        ),
        (["-m", "none"], 1, f"{sys.executable}: No module named none\n"),
        (["-m", "email.missing"], 1, f"{sys.executable}: No module named email.missing\n"),
        (["-m", "email"], 1, f"{sys.executable}: No module named email.__main__; 'email' is a pa"),
    ],
)
def test_a_script_that_is_not_there_is_one_line_with_the_status_of_python(
    arguments, status, message, target
):
    ended = start(["-m", "amp_tf", *arguments], target)
    assert (ended.returncode, ended.stderr[: len(message)]) == (status, message)
    assert ended.stderr.count("\n") == 1 + message.startswith("usage")


def test_a_command_that_nobody_reads_ends_as_it_would_without_us(target):
    # Its own write must kill it: a shell would go on for ever where the signal is ignored.
    ended = run(["--", "sh", "-c", "grep SigIgn /proc/$$/status"], target)
    ignored = int(ended.stdout.split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1


@pytest.mark.parametrize(
    ("given", "is_added"),
    [
        ({}, True),
        ({ENABLE_VAR: "0"}, True),
        ({ENABLE_VAR: "1"}, False),
        ({ENABLE_VAR: "maybe"}, False),  # told by the program itself
        ({f"{ENABLE_VAR}_GRAPH_REWRITE": "1"}, False),  # a part on purpose
    ],
)
def test_the_switch_is_added_only_where_nothing_is_on(given, is_added):
    assert command.switched_on(given) == ({ENABLE_VAR: "1"} if is_added else {})
    once = command.environment({**given, "PYTHONPATH": "a:b"})
    assert once["PYTHONPATH"].split(os.pathsep)[1:] == ["a", "b"]
    assert command.environment(once) == once


def test_the_path_of_the_command_is_what_it_would_be_without_us(target):
    """An empty entry is the current folder."""
    code = "import json, sys; print(json.dumps(sys.path[1:]))"
    environ = command.environment({**os.environ, "PYTHONPATH": ":/a::/b:"})
    said = subprocess.check_output([sys.executable, "-c", code], env=environ, cwd=target, text=True)
    path = json.loads(said)
    assert path[:3] == [os.path.realpath(target), "/a", "/b"]
    assert str(PACKAGE / "cli" / "bootstrap") not in path


SCRIPT = """
import json, sys, neighbour, __main__
spec = __spec__ and __spec__.name
facts = [sys.argv, __name__, __file__, sys.path[0], spec, neighbour.value, __main__.__file__]
print(json.dumps(facts))
sys.exit(5)
"""


@pytest.mark.parametrize(
    "command", [["{folder}/script.py"], ["-m", "script"]], ids=["script", "module"]
)
def test_a_script_or_module_runs_as_if_python_had_been_given_it(command, target):
    (target / "neighbour.py").write_text("value = 3\n")
    (target / "script.py").write_text(SCRIPT)
    arguments = [word.format(folder=target) for word in command]
    plain = start([*arguments, "a", "--b"], target)
    ended = start(["-m", "amp_tf", *arguments, "a", "--b"], target)
    assert plain.returncode == ended.returncode == 5
    assert ended.stdout == plain.stdout


@pytest.mark.quick
@pytest.mark.parametrize(
    "way",
    [["-m", "amp_tf"], ["-m", "amp_tf.cli.main", "run", "--", sys.executable]],
    ids=["python -m amp_tf", "amp-tf run"],
)
def test_training_is_converted(way, target):
    program = str(PROGRAMS / "custom_loop.py")
    ended = start([*way, program], target, AMP_TF_PRECISION="bfloat16")
    assert ended.returncode == 0, ended.stderr
    assert "nodes converted to bfloat16" in ended.stderr
