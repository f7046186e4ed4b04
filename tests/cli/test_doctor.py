"""The doctor on this machine, and each thing that it warns of, provoked."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import amp_tf
from amp_tf.cli import doctor, trial
from amp_tf.cli.doctor import DoctorReport, MachineFacts
from amp_tf.oplists.hardware import Hardware
from tests import processes

PACKAGE = pathlib.Path(amp_tf.__file__).parent
OWN = ("TF_ENABLE_AUTO_MIXED", "TF_AUTO_MIXED", "AMP_TF_", "KERAS_", "TF_XLA_FLAGS", "TF_PLUGGABLE")
OF_THIS_MACHINE = {"hardware"}  #: findings on a machine that computes nothing in 16 bit


def run_doctor(*arguments: str, flags: tuple[str, ...] = (), **environ: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    path = [entry for entry in sys.path if entry] if flags else []
    program = f"import sys; sys.path[:0] = {path!r}; from amp_tf.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return processes.run(
        [sys.executable, *flags, "-c", program, "doctor", *arguments],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )


def findings(answer: subprocess.CompletedProcess) -> dict[str, dict]:
    return {finding["name"]: finding for finding in json.loads(answer.stdout)["findings"]}


def test_this_machine_is_well_and_every_trial_converts() -> None:
    answer = run_doctor("--json")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = json.loads(answer.stdout)
    assert "amp_tf" not in answer.stderr  # the line at exit is about programs, not about these trials
    assert found["schema_version"] == doctor.SCHEMA_VERSION
    assert found["ways"]["amp_tf.pth"] == "read"
    assert found["ways"]["grappler plugin"] == found["ways"]["xla hook"] == "works"
    kinds = {(item["way"], item["precision"]) for item in found["trials"]}
    assert kinds == {(way, precision) for way in trial.WAYS for precision in trial.PRECISIONS}
    for item in found["trials"]:
        is_float32 = item["precision"] == "float32"
        assert item["failure"] == ""
        assert (item["converted"] == 0) is is_float32
        assert item["milliseconds"] > 0
        # A result that is float32's own bit for bit was not computed in 16 bit.
        assert (item["error"] == 0) is is_float32
        assert item["error"] <= trial.TOLERANCES[item["precision"]]


def test_quiet_prints_nothing() -> None:
    answer = run_doctor("--quiet", "--no-trials")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_names_a_bad_setting_a_double_installation_a_mixed_policy_and_auto_clustering(tmp_path: pathlib.Path) -> None:
    (tmp_path / "keras.json").write_text('{"floatx": "float16", "backend": "tensorflow"}')
    for name in ("tensorflow", "tensorflow_cpu"):  # newer wheels write it with an underscore
        folder = tmp_path / "packages" / f"{name}-9.9.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    answer = run_doctor(
        "--json",
        "--no-trials",
        AMP_TF_PRECISION="float8",
        KERAS_HOME=str(tmp_path),
        TF_XLA_FLAGS="--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit",
        PYTHONPATH=str(tmp_path / "packages"),
    )
    found = findings(answer)
    assert answer.returncode == 1
    assert set(found) >= {"setting", "two-tensorflows", "policy", "auto-clustering"}
    assert found["setting"]["what"].startswith("AMP_TF_PRECISION: 'float8' is not a valid value")
    assert found["setting"]["fix"] == "Valid values: auto, float16, bfloat16"
    assert "tensorflow and tensorflow-cpu" in found["two-tensorflows"]["what"]
    assert "float16 by default" in found["policy"]["what"]
    assert not found["policy"]["is_problem"]
    assert not found["auto-clustering"]["is_problem"]


def test_names_a_backend_that_is_not_installed_a_pth_that_is_not_read_and_the_kill_switch() -> None:
    answer = run_doctor(
        "--json",
        flags=("-S",),
        KERAS_BACKEND="jax",
        AMP_TF_DISABLE="1",
        TF_ENABLE_AUTO_MIXED_PRECISION="1",
    )
    found = findings(answer)
    assert answer.returncode == 1
    keras = "keras-backend" if importlib.util.find_spec("jax") else "keras"
    assert set(found) - OF_THIS_MACHINE == {keras, "autostart", "disabled"}
    assert "jax" in found[keras]["what"]
    assert "amp-tf run -- python script.py" in found["autostart"]["fix"]
    assert found["disabled"]["fix"] == "Unset AMP_TF_DISABLE"
    assert json.loads(answer.stdout)["trials"] == []  # with amp_tf off, none would convert anything


def test_a_broken_tensorflow_is_told_in_one_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise RuntimeError('half an installation')\n")
    answer = run_doctor(PYTHONPATH=str(tmp_path))
    assert answer.returncode == 2
    assert answer.stderr.startswith("amp-tf doctor: TensorFlow cannot be imported from ")
    assert "RuntimeError: half an installation" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_names_another_plugin_and_what_it_stops(tmp_path: pathlib.Path) -> None:
    library = PACKAGE / "hooks" / "grappler" / "amp_tf_cpu.so"
    if not library.exists():
        pytest.skip("the shim is not built in this checkout: pip install -e . builds it")
    other = shutil.copy(library, tmp_path / "libother_optimizer.so")
    answer = run_doctor("--json", TF_PLUGGABLE_DEVICE_LIBRARY_PATH=str(other))
    found = findings(answer)
    assert answer.returncode == 1
    assert set(found) - OF_THIS_MACHINE == {"plugin", "trial"}
    assert "libother_optimizer.so" in found["plugin"]["what"]
    ways = json.loads(answer.stdout)["ways"]
    assert (ways["grappler plugin"], ways["xla hook"]) == ("fails", "works")


def test_without_tensorflow_says_what_to_install() -> None:
    program = "import sys; sys.path[:0] = [sys.argv[1]]; from amp_tf.cli import doctor, main\n"
    program += "import argparse; sys.exit(doctor.run(argparse.Namespace(json=False, quiet=False, no_trials=False)))"
    command = [sys.executable, "-S", "-c", program, str(PACKAGE.parent)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 2
    project = pathlib.Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    advised = re.findall(r"'(tensorflow\S+)'", answer.stderr)
    assert len(advised) == 2
    assert all(f'["{requirement}"]' in project for requirement in advised)


@pytest.fixture
def facts() -> MachineFacts:
    return MachineFacts(
        environ={},
        versions={"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": ""},
        devices=[{"name": "CPU:0", "description": "a CPU", "fast_in": []}],
        hardware=Hardware(cpu_has_bf16=True),
        keras={"backend": "tensorflow", "policy": "float32", "error": ""},
        auto_clustering=False,
        autostart=True,
        plugins=[],
        trials=[],
    )


def issue(facts: MachineFacts, name: str) -> doctor.Issue | None:
    return {found.name: found for found in doctor.find_issues(facts)}.get(name)


def test_says_that_a_gpu_computes_float32_products_in_tf32(facts: MachineFacts) -> None:
    def finding(**tf32: bool | None) -> doctor.Issue | None:
        gpus = [{"name": name, "description": "a GPU", "fast_in": [], "tf32": on} for name, on in tf32.items()]
        return issue(dataclasses.replace(facts, devices=[*facts.devices, *gpus]), "tf32")

    assert finding() is None
    assert finding(V100=None, A100=False) is None
    found = finding(V100=None, H100=True)
    assert found is not None
    assert not found.is_problem
    assert found.what.startswith("H100: products that stay in float32 are computed in TF32")
    assert "enable_tensor_float_32_execution(False)" in found.fix


@pytest.mark.parametrize("name", doctor.MATH_MODE_VARS)
def test_names_a_math_mode_that_rounds_what_stays_in_float32(facts: MachineFacts, name: str) -> None:
    assert issue(facts, "math-mode") is None
    assert issue(dataclasses.replace(facts, environ={name: "strict"}), "math-mode") is None
    found = issue(dataclasses.replace(facts, environ={name: "BF16"}), "math-mode")
    assert found is not None
    assert not found.is_problem
    assert found.what.startswith(f"{name}: where the CPU has AMX")


def test_names_an_op_of_a_list_change_that_tensorflow_does_not_know(facts: MachineFacts) -> None:
    setting = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_ADD"
    assert issue(dataclasses.replace(facts, environ={setting: "MatMul"}), "op-name") is None
    finding = issue(dataclasses.replace(facts, environ={setting: "MatMull"}), "op-name")
    assert finding is not None
    assert not finding.is_problem
    assert f"({setting}): TensorFlow knows no op 'MatMull'" in finding.what
    assert finding.fix.startswith("Did you mean 'MatMul'")
    assert issue(dataclasses.replace(facts, environ={"AMP_TF_PRECISION": "float8"}), "op-name") is None


def test_names_another_keras_backend(facts: MachineFacts) -> None:
    keras = {"backend": "jax", "policy": "float32", "error": ""}
    finding = issue(dataclasses.replace(facts, keras=keras), "keras-backend")
    assert finding is not None
    assert "KERAS_BACKEND=tensorflow" in finding.fix


@pytest.mark.parametrize("version", ["2.15.1", "2.22.0-rc1", "3.0.0"])
def test_names_a_tensorflow_that_is_not_supported(facts: MachineFacts, version: str) -> None:
    finding = issue(dataclasses.replace(facts, versions={**facts.versions, "tensorflow": version}), "tensorflow")
    assert finding is not None
    assert version in finding.what


@pytest.mark.parametrize("version", ["2.16.2", "2.21.0"])
def test_takes_the_oldest_and_the_newest_tensorflow(facts: MachineFacts, version: str) -> None:
    assert issue(dataclasses.replace(facts, versions={**facts.versions, "tensorflow": version}), "tensorflow") is None


@pytest.mark.parametrize(
    ("tensorflow", "protobuf", "is_told"),
    [("2.20.0", "7.36.2", True), ("2.20.0", "6.33.0", False), ("2.21.0", "7.36.2", False), ("2.20.0", "", False)],
)
def test_names_a_protobuf_that_tensorflow_does_not_work_with(
    facts: MachineFacts, tensorflow: str, protobuf: str, is_told: bool
) -> None:
    versions = {**facts.versions, "tensorflow": tensorflow, "protobuf": protobuf}
    finding = issue(dataclasses.replace(facts, versions=versions), "protobuf")
    assert (finding is not None) is is_told
    assert finding is None or finding.fix == "pip install 'protobuf<7'"


def test_says_that_auto_converts_nothing_on_this_hardware(facts: MachineFacts) -> None:
    finding = issue(dataclasses.replace(facts, hardware=Hardware()), "hardware")
    assert finding is not None
    assert not finding.is_problem
    assert "neither avx512_bf16 nor amx_bf16" in finding.what


def test_says_that_a_tensorflow_for_gpus_sees_none_but_takes_it_for_no_problem(facts: MachineFacts) -> None:
    assert issue(facts, "gpu") is None
    finding = issue(dataclasses.replace(facts, is_without_gpu=True), "gpu")
    assert finding is not None
    assert not finding.is_problem
    assert "--gpus all" in finding.fix


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
def test_judges_a_trial(precision: str, converted: int, error: float, words: str) -> None:
    failure = trial._judge(precision, converted, error)
    assert words in failure
    assert bool(failure) is bool(words)


def test_text_for_people_has_every_finding_with_its_fix(facts: MachineFacts) -> None:
    found = (
        doctor.Issue("a", True, "something is wrong", "Do this"),
        doctor.Issue("b", False, "something is odd", "Do that"),
    )
    text = doctor.render(DoctorReport(facts, found))
    assert text.index("Problems\n  - something is wrong.\n    Do this.") < text.index("Notes\n  - something is odd.")
    assert "No problems." not in text
    assert "No problems." in doctor.render(DoctorReport(facts, found[1:]))


def test_a_run_that_fails_later_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as memory that runs out in the second run: the other precisions are timed all the same."""
    runs = []

    def make(device: str, way: str, precision: str) -> trial._Made:
        def run() -> None:
            runs.append(precision)
            if precision == "bfloat16" and runs.count(precision) == 2:
                raise MemoryError("no memory is left")

        return trial._Made(run, np.ones(2), converted=0 if precision == "float32" else 4)

    monkeypatch.setattr(trial, "_make", make)
    plain, failed, well = trial._run_way("CPU:0", "grappler")
    assert (plain.failure, failed.failure, well.failure) == ("", "MemoryError: no memory is left", "")
    assert runs[:6] == ["float32", "bfloat16", "float16"] * 2
    assert runs.count("float16") == runs.count("float32") > 2


def test_settings_that_contradict_each_other_and_misspelt_variables_are_found(facts: MachineFacts) -> None:
    prefix = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
    environ = {f"{prefix}ALLOWLIST_ADD": "Relu", f"{prefix}DENYLIST_ADD": "Relu", "AMP_TF_PRECISON": "bfloat16"}
    facts = dataclasses.replace(facts, environ=environ)
    setting = issue(facts, "setting")
    assert setting is not None
    assert setting.is_problem
    assert (
        f"({prefix}ALLOWLIST_ADD) and AmpConfig.deny_add ({prefix}DENYLIST_ADD): op 'Relu' is to join" in setting.what
    )
    variable = issue(facts, "variable")
    assert variable is not None
    assert (variable.is_problem, variable.fix) == (False, "Write AMP_TF_PRECISION")
    assert "AMP_TF_PRECISON" in variable.what
    gone = issue(dataclasses.replace(facts, environ={"AMP_TF_MONITOR": "runs"}), "variable")
    assert gone is not None
    assert gone.fix.startswith("Use amp-tf compare")
    assert issue(facts, "op-name") is None  # the first one tells it
