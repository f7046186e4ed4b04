"""A program says the same in a fork of a process that imported TensorFlow as in a fresh process."""

import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import processes
from tests.hooks import running
from tests.tiers import long_files_first, starts_process

pytestmark = pytest.mark.skipif(
    not running.is_installed(), reason="amp_tf is on a path of each test's own here"
)
LOOKS_AROUND = """
import ctypes, os, sys
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
main = sys.modules["__main__"]
print(vars(main) is globals(), __name__, __doc__, __package__)
print(__spec__ and __spec__.name, __loader__.__class__)
print(sorted(name for name in globals() if name[0] == "_"), globals().get("__file__"))
print(sys.argv, sys.orig_argv, sys.path, os.getcwd(), sys.stdout.line_buffering, sys.stdin.read())
print(sorted(os.environ.items()))
names = (b"GIVEN", b"TF_ENABLE_AUTO_MIXED_PRECISION", b"AMP_TF_DISABLE", b"XDG_CACHE_HOME")
print([getenv(name) for name in names])
print([name for name in ("tensorflow", "keras", "tf_keras", "amp_tf") if name in sys.modules])
print(os.listdir("/proc/self/fd"))
print([type(finder).__name__ for finder in sys.meta_path if "Amp" in type(finder).__name__])
import atexit, tensorflow
atexit.register(print, "at exit")
"""
TRAINS = """
import atexit, os, sys, threading
atexit.register(print, "registered first")
import tf_keras, numpy as np
import keras
tensorflow = sys.modules["tensorflow"]
for library in (tf_keras, keras):
    print("amp_tf" in sys.modules, library.__spec__.name, library.__spec__._initializing)
    print(tensorflow.__spec__.origin)
    print(sorted(os.environ.items()))
    model = library.Sequential([library.layers.Dense(32, "relu"), library.layers.Dense(8)])
    model.build((8, 32))
    model.set_weights([np.full(weight.shape, 0.1, "float32") for weight in model.get_weights()])
    model.compile("sgd", "mse")
    print(model.fit(np.ones((8, 32), "f"), np.ones((8, 8), "f"), verbose=0).history)
threading.Timer(0.1, print, ["its thread ends"]).start()
atexit.register(print, "registered last", file=sys.stderr)
"""
#: Ways to start a program, and how it ends.
WAYS = {
    "-m": (["-m", "program"], "def fails():\n    raise ValueError('no')\nfails()"),
    "a file": (["program.py"], "raise KeyboardInterrupt"),
    "-c": (["-c", "{program}"], "sys.stdout.flush()\nos.kill(os.getpid(), 9)"),
}
VARIABLES = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16", "GIVEN": "to C, too"}


def both(arguments, folder, variables):
    """How a program ends as a fork and as a fresh process, which is the same."""
    ends = []
    for fresh in ("", "it is compared with a fork"):
        forks = processes._Forked.started
        ends.append(running.run(arguments, folder, variables, fresh=fresh, status=None))
        assert processes._Forked.started == forks + (not fresh)
    fork, expected = ends
    assert fork.status == expected.status, fork.err
    assert said(fork.out) == said(expected.out)
    assert said(fork.err) == said(expected.err)
    return ends


def said(text):
    """Lines without the times and the numbers of processes in TensorFlow's."""
    return [re.sub(r"^([IWEF])\d{4} [\d:.]+ +\d+ ", r"\1 ", line) for line in text.splitlines()]


def test_a_program_trains_and_leaves_the_same_line_and_report(tmp_path):
    (tmp_path / "program.py").write_text(TRAINS)
    variables = {**VARIABLES, "AMP_TF_REPORT": str(tmp_path / "reports")}
    ends = both(["program.py"], tmp_path, variables)
    assert all(ended.converted > 0 for ended in ends)
    first, second = (json.loads(file.read_text()) for file in (tmp_path / "reports").iterdir())
    differs = {name for name in first if first[name] != second[name]}
    # Blockers are tried as long as the report's time lasts.
    assert differs <= {"process", "steps", "blockers", "together"}
    kinds = [{row["kind"] for row in document["blockers"]} for document in (first, second)]
    assert kinds[0] == kinds[1]
    process = first["process"].items() ^ second["process"].items()
    assert {name for name, _ in process} <= {"pid", "made", "seconds"}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_finds_itself_in_the_same_place_and_ends_in_the_same_way(way, tmp_path):
    """With a TensorFlow that it brings."""
    arguments, end = WAYS[way]
    program = LOOKS_AROUND + end
    (tmp_path / "tensorflow.py").write_text("print('the other one')")
    (tmp_path / "program.py").write_text(program)
    words = [word.format(program=program) for word in arguments]
    (ended, _) = both([*words, "an argument", "-c"], tmp_path, VARIABLES)
    assert ended.status != 0
    assert "the other one" in ended.out


def test_streams_limits_and_signals_are_those_of_subprocess(tmp_path):
    options = {"cwd": tmp_path, "text": True}
    program = (
        "import sys, time; print(sys.stdin.read()); sys.stdout.flush(); "
        "time.sleep(float(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program]
    ended = processes.run(
        [*command, "0"], input="given", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "given\n", None)
    with pytest.raises(subprocess.TimeoutExpired) as error:
        processes.run([*command, "100"], input="given", capture_output=True, timeout=2, **options)
    assert error.value.stdout == b"given\n"
    with pytest.raises(subprocess.CalledProcessError):
        processes.run([sys.executable, "-c", "import sys; sys.exit(5)"], check=True, **options)
    with (tmp_path / "file").open("w") as file:
        process = processes.start([*command, "100"], stdin=subprocess.PIPE, stdout=file, **options)
        with process:
            assert process.poll() is None
            process.terminate()
            assert process.wait(60) == process.poll() == -signal.SIGTERM
    assert not os.path.exists(f"/proc/{process.pid}")


def test_what_a_fork_cannot_be_is_a_fresh_process(tmp_path):
    python = sys.executable
    code = ["-c", ""]
    assert processes._is_forkable([python, *code], {}, {"cwd": tmp_path, "text": True})
    (tmp_path / "tensorflow.py").touch()
    for command, environ, options in (
        *(([python, *flags, *code], {}, {}) for flags in (["-I"], ["-S"], ["-W", "ignore"])),
        ([python, *code], {"KERAS_BACKEND": "jax"}, {}),
        ([python, *code], {"PYTHONPATH": str(tmp_path)}, {}),
        ([python, *code], {}, {"preexec_fn": os.setsid}),
        (["python", *code], {}, {}),
        ([python, "no_such_program.py"], {}, {}),
    ):
        assert not processes._is_forkable(command, environ, options), (command, environ, options)


def by_itself():
    subprocess.run([sys.executable, "-c", ""], check=True)


def by_a_helper():
    running.run(["-c", ""], None, {})


@pytest.fixture
def started():
    return [by_itself() for _ in range(2)]


def asks_for_a_fixture(started):
    pass


def alone():
    return running.SUMMARY.search("amp_tf: 1 graph")


@pytest.mark.parametrize(
    ("function", "expected"), [(by_a_helper, True), (asks_for_a_fixture, True), (alone, False)]
)
def test_what_starts_a_process_is_found_through_helpers_and_fixtures(function, expected, request):
    item = pytest.Function.from_parent(
        request.node.parent, name=function.__name__, callobj=function
    )
    assert starts_process(item) is expected


def test_files_with_long_tests_come_first():
    def item(path, *marks):
        return SimpleNamespace(
            path=path, iter_markers=lambda: [getattr(pytest.mark, name).mark for name in marks]
        )

    given = [item("1"), item("2"), item("p"), item("p", "process"), item("3"), item("s", "slow")]
    assert [each.path for each in long_files_first(given)] == ["s", "p", "p", "1", "2", "3"]
