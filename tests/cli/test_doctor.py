"""The doctor on this machine, and each thing that it warns of, provoked."""

import dataclasses
import itertools
import os
import re
import shutil
import sys

import numpy as np
import pytest
from packaging import requirements

from amp_tf.cli import doctor, machine
from amp_tf.cli.machine import Device, KerasFacts, MachineFacts
from amp_tf.hooks import native
from amp_tf.oplists.hardware import Hardware
from amp_tf.tools import trials
from tests import processes

OWN = ("TF_ENABLE_AUTO_MIXED", "TF_AUTO_MIXED", "AMP_TF_", "KERAS_", "TF_XLA_FLAGS", "TF_PLUGGABLE")


def run_doctor(*arguments, flags=(), **environ):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    path = list(filter(None, sys.path)) if flags else []
    program = (
        f"import sys; sys.path[:0] = {path!r}; from amp_tf.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    return processes.run(
        [sys.executable, *flags, "-c", program, "doctor", *arguments],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )


TRIAL = re.compile(r"^  \S+ +(grappler|xla) +(\w+) +(\d+) +(\S+)$", re.MULTILINE)


def test_this_machine_is_well_and_every_trial_converts():
    answer = run_doctor()
    assert answer.returncode == 0, answer.stdout + answer.stderr
    # The line at exit is about programs, not about these trials.
    assert "amp_tf" not in answer.stderr
    assert "retracing" not in answer.stderr  # TensorFlow's, of a function traced in each trial
    assert re.search("^  amp_tf.pth +read$", answer.stdout, re.MULTILINE)
    assert answer.stdout.endswith("\nNo problems.\n")
    assert "error: the largest, relative to float32's largest value)\n" in answer.stdout
    kinds = []
    for way, precision, converted, error in TRIAL.findall(answer.stdout):  # without a failure
        kinds.append((way, precision))
        is_float32 = precision == "float32"
        assert (converted == "0") is is_float32
        # A result that is float32's own bit for bit was not computed in 16 bit.
        assert (float(error) == 0) is is_float32
        assert float(error) <= trials.TOLERANCES[precision]
    assert set(kinds) == set(itertools.product(trials.WAYS, trials.PRECISIONS))
    quiet = run_doctor("--quiet", "--no-trials")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_names_a_bad_setting_a_double_installation_and_a_mixed_policy(tmp_path):
    (tmp_path / "keras.json").write_text('{"floatx": "float16", "backend": "tensorflow"}')
    for name in ("tensorflow", "tensorflow_cpu"):  # newer wheels write it with an underscore
        folder = tmp_path / "packages" / f"{name}-9.9.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    answer = run_doctor(
        "--no-trials",
        AMP_TF_PRECISION="float8",
        KERAS_HOME=str(tmp_path),
        PYTHONPATH=str(tmp_path / "packages"),
    )
    assert answer.returncode == 1
    problems, _, notes = answer.stdout.partition("\nNotes\n")
    assert "\n  - AMP_TF_PRECISION: 'float8' is not a valid value" in problems
    assert "\n    Valid values: auto, float16, bfloat16.\n" in problems
    assert "tensorflow and tensorflow-cpu" in problems
    assert "float16 by default" in notes


def test_names_a_backend_that_is_not_installed_a_pth_that_is_not_read_and_the_kill_switch():
    answer = run_doctor(
        flags=("-S",),
        KERAS_BACKEND="jax",
        AMP_TF_DISABLE="1",
        TF_ENABLE_AUTO_MIXED_PRECISION="1",
    )
    assert answer.returncode == 1
    problems, _, notes = answer.stdout.partition("\nNotes\n")
    assert "\n  - Keras " in problems
    assert "jax" in problems
    assert "amp-tf run -- python script.py" in problems
    assert problems.count("\n  - ") == 2
    assert "\n    Unset AMP_TF_DISABLE.\n" in notes
    assert not TRIAL.findall(answer.stdout)  # with amp_tf off, none would convert anything


def test_an_installation_without_amp_tf_pth_is_no_fault(facts, tmp_path, monkeypatch):
    assert not machine.is_without_pth()
    info = tmp_path / "amp_tf-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amp-tf\nVersion: 0.1.0\n")
    (info / "RECORD").write_text("_amp_tf_start.py,,\namp_tf/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert machine.is_without_pth()
    without = dataclasses.replace(facts, autostart=False, is_without_pth=True)
    assert without.ways["amp_tf.pth"] == "left out"
    (issue,) = (issue for issue in doctor.find_issues(without) if "amp_tf.pth" in issue.what)
    assert not issue.is_problem
    assert issue.fix == "Write amp-tf run -- python script.py, or amp_tf.enable() in the script"


def test_names_another_plugin_and_what_it_stops(tmp_path):
    other = shutil.copy(native.FOLDER / "amp_tf_cpu.so", tmp_path / "libother_optimizer.so")
    answer = run_doctor(TF_PLUGGABLE_DEVICE_LIBRARY_PATH=str(other))
    assert answer.returncode == 1
    problems = answer.stdout.partition("\nProblems\n")[2].partition("\nNotes\n")[0]
    plugin, trial = re.findall("^  - (.*)", problems, re.MULTILINE)
    assert "libother_optimizer.so" in plugin
    assert set(re.findall(r"CPU:0, (\w+), ", trial)) == {"grappler"}


@pytest.fixture
def facts():
    return MachineFacts(
        environ={},
        versions={"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": ""},
        devices=[Device("CPU:0", "a CPU")],
        hardware=Hardware(cpu_has_bf16=True),
        keras=KerasFacts("tensorflow", "float32"),
        autostart=True,
        plugins=[],
        trials=[],
    )


PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
TWICE = {f"{PREFIX}ALLOWLIST_ADD": "Relu", f"{PREFIX}DENYLIST_ADD": "Relu"}
WITHOUT_TF32 = Device("A100", "a GPU")
WITH_TF32 = Device("H100", "a GPU", has_tf32=True)


#: Words of a finding, a field of the machine's facts, what it has there, and what is said of it:
#: whether it is a problem, what is wrong … what to do.
CHECKS = [
    ("computed in TF32", "devices", [], ""),
    ("computed in TF32", "devices", [WITHOUT_TF32], ""),
    (
        "computed in TF32",
        "devices",
        [WITHOUT_TF32, WITH_TF32],
        "note: H100: products that stay in float32 are computed in TF32 … "
        "enable_tensor_float_32_execution(False)",
    ),
    ("oneDNN rounds", "environ", {"ONEDNN_DEFAULT_FPMATH_MODE": "strict"}, ""),
    (
        "oneDNN rounds",
        "environ",
        {"DNNL_DEFAULT_FPMATH_MODE": "BF16"},
        "note: DNNL_DEFAULT_FPMATH_MODE: where the CPU has AMX",
    ),
    ("TensorFlow knows no op", "environ", {f"{PREFIX}ALLOWLIST_ADD": "MatMul"}, ""),
    (
        "TensorFlow knows no op",
        "environ",
        {f"{PREFIX}ALLOWLIST_ADD": "MatMull"},
        f"note: … ({PREFIX}ALLOWLIST_ADD): TensorFlow knows no op 'MatMull' … Did you mean "
        "'MatMul'",
    ),
    ("TensorFlow knows no op", "environ", {"AMP_TF_PRECISION": "float8"}, ""),
    ("TensorFlow knows no op", "environ", TWICE, ""),  # the next one says it
    (
        "is to join",
        "environ",
        TWICE,
        "problem: … and AmpConfig.deny_add … op 'Relu' is to join",
    ),
    (
        "not variables of amp_tf",
        "environ",
        {"AMP_TF_PRECISON": "bf16"},
        "note: … AMP_TF_PRECISON … AMP_TF_PRECISION",
    ),
    (
        "Keras computes with",
        "keras",
        KerasFacts("jax", "float32"),
        "problem: … KERAS_BACKEND=tensorflow",
    ),
    (
        "outside of what amp_tf is tested with",
        "tensorflow",
        "2.15.1",
        "problem: … 2.15.1 … pip install 'tensorflow>=2.16,<2.22'",
    ),
    ("outside of what amp_tf is tested with", "tensorflow", "2.22.0-rc1", "problem: … 2.22.0-rc1"),
    ("outside of what amp_tf is tested with", "tensorflow", "2.16.2", ""),
    ("converts nothing here", "hardware", Hardware(), "note: … neither avx512_bf16 nor amx_bf16"),
    ("sees none", "is_without_gpu", False, ""),
    ("sees none", "is_without_gpu", True, "note: … --gpus all"),
]


@pytest.mark.parametrize(("words", "field", "value", "told"), CHECKS)
def test_a_finding_says_what_is_wrong_and_what_to_do(words, field, value, told, facts):
    if field == "tensorflow":
        field = "versions"
        value = {**facts.versions, "tensorflow": value}
    found = []
    for finding in doctor.find_issues(dataclasses.replace(facts, **{field: value})):
        if words in finding.what:
            kind = "problem" if finding.is_problem else "note"
            found.append(f"{kind}: {finding.what} {finding.fix}")
    assert len(found) == bool(told)
    if told:
        pattern = ".*".join(map(re.escape, re.split(" ?… ?", told)))
        assert re.match(pattern, found[0]), found


@pytest.mark.parametrize(
    ("installed", "fix"),
    [
        ([], "pip install 'tensorflow>=2.16,<2.22'"),
        (["tensorflow-cpu"], "pip install 'tensorflow-cpu>=2.16,<2.22'"),
        (
            ["tf-nightly-cpu"],
            "pip uninstall tf-nightly-cpu, then pip install 'tensorflow-cpu>=2.16,<2.22'",
        ),
    ],
)
def test_pip_is_asked_for_what_it_takes_and_in_place_of_what_is_there(facts, installed, fix):
    versions = {**facts.versions, "tensorflow": "2.15.0"}
    found = dataclasses.replace(facts, versions=versions, distributions=installed)
    fixes = [issue.fix for issue in doctor.find_issues(found) if "tested with" in issue.what]
    assert fixes == [fix]
    wanted = requirements.Requirement(fix.split("'")[1]).specifier
    for version, is_wanted in (("2.15.1", False), ("2.16.0", True), ("2.21.3", True)):
        assert wanted.contains(version) is is_wanted
    assert not wanted.contains("2.22.0")


@pytest.mark.parametrize("enabled", [{}, {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}])
def test_the_kill_switch_is_named_as_what_turns_amp_tf_off(facts, enabled):
    found = dataclasses.replace(facts, environ={"AMP_TF_DISABLE": "1", **enabled})
    assert found.ways["switch"] == "off (AMP_TF_DISABLE is set)"
    (issue,) = (issue for issue in doctor.find_issues(found) if "AMP_TF_DISABLE" in issue.what)
    assert not issue.is_problem
    assert issue.what.endswith("amp_tf is off whatever else is set, and is not tried here")
    assert issue.fix == "Unset AMP_TF_DISABLE"


def test_what_a_sitecustomize_prints_does_not_hide_amp_tf_pth(tmp_path):
    prints = "import sys; sys.stdout.buffer.write(b'welcome to the cluster \\xff\\n')"
    (tmp_path / "sitecustomize.py").write_text(prints)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    assert machine.reads_pth(environ)
    assert machine.reads_pth({**environ, "PYTHONPATH": str(tmp_path)})
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(0)")
    assert not machine.reads_pth({**environ, "PYTHONPATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("precision", "converted", "error", "words"),
    [
        ("bfloat16", 0, 0.0, "nothing was converted"),
        ("bfloat16", 4, float("nan"), "differs from float32 by nan"),
        ("float16", 4, 0.1, "differs from float32 by 0.1"),
        ("float32", 3, 0.0, "while amp_tf was off"),
        ("float16", 4, 0.001, ""),
    ],
)
def test_judges_a_trial(precision, converted, error, words):
    failure = trials._judge(precision, converted, error)
    assert words in failure
    assert bool(failure) is bool(words)


def test_a_trial_that_fails_is_a_finding_and_the_others_run(monkeypatch, facts):
    def run(device, way, precision):
        if precision == "bfloat16":
            raise MemoryError("no memory is left\nat all")
        if precision == "float32":
            return np.ones(2), 0
        return np.full(2, 1.001), 4

    monkeypatch.setattr(trials, "_run", run)
    found = trials._run_way("CPU:0", "grappler")
    text = doctor.render(dataclasses.replace(facts, trials=found), ())
    told = re.findall(r"^  CPU:0 +grappler +(.*)", text, re.MULTILINE)
    assert [re.sub(" +", " ", line) for line in told] == [
        "float32 0 0.0e+00",
        "bfloat16 0 0.0e+00 MemoryError: no memory is left",
        "float16 4 1.0e-03",
    ]


@pytest.mark.parametrize("distribution", ["zebra", "zebra-nightly"])
def test_the_nightly_version_of_a_library_counts_too(distribution, tmp_path, monkeypatch):
    folder = tmp_path / f"{distribution.replace('-', '_')}-3.16.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.16\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert machine._version_of("zebra") == "3.16"
    assert machine._version_of("giraffe") == ""
