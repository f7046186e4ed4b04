"""The scripts: the demo, the environments that they make, what they read of amp_tf's summary, and
their help.
"""

import graphlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import amp_tf
from amp_tf.oplists.hardware import Hardware

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import summary_line
import venvs

from tests import processes

ROOT = Path(__file__).resolve().parents[2]
ON = "INFO:absl:amp_tf: 3 graphs, {} of 648 nodes converted to bfloat16, 32 casts"


@pytest.fixture
def forked(monkeypatch):
    """Forks each process that is started of this Python."""
    monkeypatch.setattr(subprocess, "Popen", processes.start)


@pytest.fixture(scope="module")
def demo():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("demo", str(ROOT / "scripts" / "demo"))
    spec = importlib.util.spec_from_loader("demo", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


PYTEST = """
import signal, time
# A shell in the background has its programs ignore this signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("running", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)  # longer than subprocess.run gives a program that was interrupted
    print("2 passed")
    raise SystemExit(2)
"""
RUNS = """
import importlib.machinery, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
script = importlib.machinery.SourceFileLoader("script", sys.argv[1]).load_module()
sys.exit(script.run([sys.executable, "-c", sys.argv[2]], dict(os.environ)))
"""


def test_an_interrupt_of_the_tests_ends_with_pytests_summary_and_status_and_no_traceback():
    command = [sys.executable, "-W", "ignore", "-c", RUNS, str(ROOT / "scripts" / "test"), PYTEST]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        out, err = program.communicate(timeout=30)
    assert (program.returncode, out, err) == (2, "2 passed\n", "")


def trained(accuracy, milliseconds, log=""):
    return {
        "validation_accuracy": accuracy,
        "ms_per_step": milliseconds,
        "summary": summary_line.find(log),
    }


@pytest.mark.parametrize(
    ("accuracy", "milliseconds", "log", "problem"),
    [
        (0.971, 52.9, ON.format(30), ""),
        (0.969, 52.9, ON.format(30), "differ by more than one percentage point"),
        (0.98, 88.7, ON.format(30), "was not faster"),
        (0.98, 52.9, ON.format(0), "Nothing was converted: 3 graphs"),
        (0.98, 52.9, "", "no summary line"),
    ],
)
def test_the_status_says_whether_all_is_as_promised(
    accuracy,
    milliseconds,
    log,
    problem,
    demo,
    capsys,
):
    off = trained(0.98, 88.7)
    on = trained(accuracy, milliseconds, log)
    problems = [*demo.judge_accuracy(off, on), *demo.judge_speed(off, on)]
    assert demo.judge(problems, "It was faster.") == (1 if problem else 0)
    assert (problem or "It was faster.") in capsys.readouterr().out


def test_a_model_that_goes_wrong_on_a_gpu_is_not_as_promised(demo):
    assert demo.judge_verdict(0) == []
    assert demo.judge(demo.judge_verdict(1), "It is healthy.") == 1


def make_without_pip(path):
    """An environment that works; to put pip into it takes longer."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(path)]
    subprocess.run(command, check=True)
    return venvs.make(path)


@pytest.mark.slow
def test_the_demo_trains_twice_and_shows_what_this_cpu_is_good_for(tmp_path):
    venv = make_without_pip(tmp_path / "venv")
    (site_packages,) = venv.path.glob("lib/python*/site-packages")
    (site_packages / "tests.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    venv.write_stamp(venvs.fingerprint(sys.version, "demo"))
    command = [
        sys.executable,
        "scripts/demo",
        "--venv",
        str(venv.path),
        "--epochs",
        "1",
        "--size",
        "8",
    ]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.stderr == ""
    said = [r"^validation accuracy +\d+\.\d\d% +\d+\.\d\d% +[-+.\d]+ points$"]
    if Hardware.detect_cpu().cpu_gains:
        said.append(r"[\d.]+ times as fast$")
    else:
        said += [
            "This CPU is not faster in 16 bit",
            r"^nodes converted +0 +[1-9]\d* of \d+$",
            r"^  sequential: healthy in float16 \([1-9]\d* of \d+ nodes in",
        ]
    for pattern in said:
        assert re.search(pattern, ended.stdout, re.MULTILINE), ended.stdout
    # On images so small amp_tf may convert nothing, or not be faster.
    assert ended.returncode in (0, 1)


@pytest.mark.parametrize(
    ("log", "numbers"),
    [
        (
            "I1120 08:49 x.py:1] amp_tf: 14 graphs, 1,234 of 5,678 nodes converted, 321 casts",
            (14, 1234, 5678, 321),
        ),
        ("INFO:amp_tf: 1 graph, 3 of 9 nodes converted to bfloat16, 1 cast added", (1, 3, 9, 1)),
        (
            "amp_tf: 2 graphs, 0 of 12 nodes converted, 0 casts: no op on the allow list",
            (2, 0, 12, 0),
        ),
        (
            "amp_tf: 1 graph, 1 of 2 nodes, 1 cast\namp_tf: 5 graphs, 7 of 8 nodes, 2 casts",
            (5, 7, 8, 2),
        ),  # the last
    ],
)
def test_the_summary_line_is_read(log, numbers):
    summary = summary_line.find(f"something else\n{log}\nmore\n")
    assert summary is not None
    assert (summary.graphs, summary.converted, summary.total, summary.casts) == numbers
    assert summary.text.endswith(log[-12:])
    assert summary_line.find("amp_tf: second plugin found; stepping back\n12 of 12 nodes\n") is None


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "amp_tf").mkdir()
    (tmp_path / "amp_tf" / "a.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return tmp_path


def test_fingerprint_follows_what_is_installed(sources):
    def fingerprints():
        return venvs.fingerprint(root=sources), venvs.fingerprint(editable=True, root=sources)

    (sources / "amp_tf" / "shim.c").write_text("int x;")
    plain, editable = fingerprints()
    (sources / "amp_tf" / "shim.so").write_bytes(b"\x7fELF")  # what the build makes
    assert fingerprints() == (plain, editable)
    (sources / "amp_tf" / "a.py").write_text("x = 2\n")
    assert fingerprints()[0] != plain
    assert fingerprints()[1] == editable
    (sources / "amp_tf" / "shim.c").write_text("int y;")
    assert fingerprints()[1] != editable
    assert venvs.fingerprint("2.16", root=sources) != venvs.fingerprint("2.21", root=sources)


@pytest.mark.usefixtures("forked")
def test_failed_command_ends_with_its_last_lines(tmp_path):
    command = [sys.executable, "-c", "print('no room on the disk'); raise SystemExit(3)"]
    with pytest.raises(
        venvs.SetupError, match=r"(?s)try it: status 3\. The last lines of .*no room on the disk"
    ):
        venvs.run(command, title="try it", log=tmp_path / "log.txt")


def test_clean_environment_drops_the_switches_and_keeps_the_rest(monkeypatch):
    switches = (
        "TF_ENABLE_AUTO_MIXED_PRECISION",
        "AMP_TF_PRECISION",
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL",
    )
    for name in (*switches, "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    environment = venvs.clean_environment(AMP_TF_PRECISION="bfloat16")
    assert {name for name in environment if re.search("AMP|MIXED|BYTECODE", name)} == {
        "AMP_TF_PRECISION"
    }
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert "AMP_TF_PRECISION" in os.environ


@pytest.mark.usefixtures("forked")
def test_environment_is_made_and_made_again_when_broken(tmp_path):
    venv = make_without_pip(tmp_path / "venv")
    venv.write_stamp("installed")
    assert venvs.make(tmp_path / "venv").read_stamp() == "installed"
    venv.python.unlink()
    assert venvs.make(tmp_path / "venv").read_stamp() == ""


@pytest.mark.usefixtures("forked")
def test_the_metadata_of_a_checkout_is_no_installation(tmp_path, monkeypatch):
    """So the demo installed twice where an earlier build had left its metadata in the checkout."""
    (tmp_path / "not_installed.egg-info").mkdir()
    (tmp_path / "not_installed.egg-info" / "PKG-INFO").write_text(
        "Name: not-installed\nVersion: 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    venv = venvs.Venv(Path(sys.prefix), tmp_path / "log.txt")
    assert venv.version_of("not-installed") == ""
    assert venv.version_of("pytest") == pytest.__version__


PROGRAMS = sorted(
    str(path.relative_to(ROOT))
    for path in [*(ROOT / "scripts").iterdir(), *(ROOT / ".ci").iterdir()]
    if path.is_file() and os.access(path, os.X_OK)
)


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def checkout(tmp_path):
    """Copies what the scripts read and write, so that a wrong one harms nothing."""
    for name in ("scripts", ".ci", "docker"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_the_scripts_are_found():
    assert {".ci/run", "scripts/demo", "scripts/lock_requirements", "scripts/test"} <= set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_is_all_that_it_does(program, checkout):
    before = files(checkout)
    first = (checkout / program).read_text(encoding="utf-8").splitlines()[0]
    command = "bash" if first.endswith("bash") else sys.executable
    # Without a network and a pip there is nothing that a script could install meanwhile.
    environ = {**os.environ, "PIP_NO_INDEX": "1", "PYTHONPATH": str(ROOT)}
    ended = processes.run(
        [command, program, "--help"],
        cwd=checkout,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "usage: " in ended.stdout
    assert files(checkout) == before


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def test_the_journey_ends_where_the_rewrite_does():
    import journey

    result = amp_tf.rewrite(
        journey.make_graph(),
        amp_tf.AmpConfig(),
        hardware=Hardware(cpu_has_bf16=True),
        preserve=["out"],
    )
    apply = journey.contents().partition("\napply:")[2].partition("\nverify:")[0]
    assert [line.strip() for line in apply.splitlines()[1:]] == list(
        journey.short(result.graph.node)
    )


def test_no_modules_import_each_other_in_a_circle():
    import rooms

    known = rooms.modules(ROOT)
    used = {name: rooms.imports(tree, known) - {name} for name, tree in known.items()}
    assert set(graphlib.TopologicalSorter(used).static_order()) == set(known)
