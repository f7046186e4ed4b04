"""The commands of the documents: those that can run here are run, and the others are known by name, with the reason."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.hooks import running

ROOT = Path(__file__).resolve().parents[1]
FOR_USERS = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
DOCUMENTS = (*FOR_USERS, "CONTRIBUTING.md", "docker/README.md", "benchmarks/README.md")
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(
    r"(?<![\w/])(?P<program>scripts/\w+(?:\.py)?|benchmarks/\w+\.py|\.ci/run|(?<=-m )benchmarks[.\w]*)"
    r"(?P<options>(?:[ \n]+(?!scripts/|python )[^\s`]+)*)"
)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")

# Shell commands that no test of this file runs.
ELSEWHERE = {
    "scripts/demo": "tests/scripts/test_demo.py",
    "scripts/test": "runs this test",
    "scripts/test_plugin": "installs another TensorFlow and zentf",
    ".venv/test/bin/python -m benchmarks.gpu judge": "installs 3 GB; test_gpu_judge.py judges its rows",
    "pip install '.[cpu]'": "installs half a GB; scripts/test_wheel does it",
    "pip install '.[gpu]'": "installs several GB; docker/ does it",
    "pip install .": "tests/test_packaging.py",
    "scripts/test --all": "runs this test",
    "scripts/test -q tests/painting": "runs tests",
    ".venv/test/bin/pip install --no-deps -e .": "changes the environment of the tests; scripts/test does it",
    ".ci/run": "runs this test",
    "pip install pre-commit && pre-commit install": "changes the checkout's hooks",
    ".venv/test/bin/python scripts/update_docs": ".ci/run checks what it would write",
}
# Commands inside sentences that are run here, made short.
SHORT = {
    "python benchmarks/interpreter_start.py": "--starts 2",
}
TRAIN = """
import tensorflow as tf
f = tf.function(lambda x: tf.nn.relu(tf.matmul(x, x, name="decoder_1/attention/product")) @ x + 1.0)
f(tf.ones((32, 32)))
"""
EXPORT = """
import keras
layers = keras.layers
model = keras.Sequential([layers.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(2)])
for folder in ("model_folder", "saved_model_folder"):
    model.export(folder, verbose=False)
import numpy as np
np.savez("inputs.npz", **{model.inputs[0].name: np.ones((8, 4), np.float32)})
"""
# What the Python blocks take for granted, and what holds after those of a document.
BEFORE = """
import os
import keras
import tensorflow as tf
import amp_tf
with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, (4, 4))
    tf.identity(tf.matmul(x, x), name="logits")
graph_def = graph.as_graph_def()
h = w = tf.ones((2, 2))
variable = tf.Variable(1.0)
def train():
    tf.function(lambda x: tf.nn.relu(tf.matmul(x, x)) @ x)(tf.ones((4, 4)))
    return 1.0
variables, optimizer, compute_loss = [variable], keras.optimizers.SGD(), lambda: 2 * variable
"""
TRAINED = "assert float(variable) < 1 and optimizer.inner_optimizer is not optimizer and float(loss) <= 2"
AFTER = {
    "README.md": f"{TRAINED} and not amp_tf.is_enabled()",
    "docs/files.md": 'assert "logits" in [node.name for node in result.graph.node] and result.changed',
    "docs/loss-scaling.md": f"{TRAINED} and float(scaler.loss_scale) > 1",
    "docs/python.md": "assert not amp_tf.is_enabled()",
    "docs/tune.md": "assert not tuned.lock.decisions and os.path.exists('amp.lock')",
    "docs/report.md": "assert os.path.exists('report.html')",
}
COMPARING = "docs/compare.md"
SWITCH = 'os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"\n'


def blocks(language: str, document: str) -> list[str]:
    found = FENCED.findall((ROOT / document).read_text(encoding="utf-8"))
    return [text for name, text in found if name == language]


def shell_commands(document: str) -> list[str]:
    lines = "".join(blocks("sh", document)).replace("\\\n", " ").splitlines()
    return [" ".join(shlex.split(line, comments=True, posix=False)) for line in lines if line.strip()]


COMMANDS = dict.fromkeys(command for document in FOR_USERS for command in shell_commands(document))
RUN = [command for command in COMMANDS if command not in ELSEWHERE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user would be, with what the commands name."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "train.py").write_text(TRAIN)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    scripts = {
        "python": f'exec {shlex.quote(sys.executable)} "$@"',
        "amp-tf": f'exec {shlex.quote(sys.executable)} -m amp_tf.cli.main "$@"',
        "mpirun": 'shift 2; exec "$@"',  # one process in the place of four
    }
    for name, text in scripts.items():
        (programs / name).unlink(missing_ok=True)
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    ended = running.run(["-c", EXPORT], folder, {})
    assert ended.status == 0, ended.err
    return folder


def start(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = running.environment(folder, variables)
    environ["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    return processes.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)


def without_shell(command: str) -> tuple[list[str], dict[str, str]]:
    """A command that is variables, a program and its arguments, so that it can be forked; else the shell's."""
    words = shlex.split(command)
    variables = dict(word.split("=", 1) for word in itertools.takewhile(re.compile(r"[A-Z_]+=").match, words))
    program, *arguments = words[len(variables) :]
    begin = {"python": [], "amp-tf": ["-m", "amp_tf.cli.main"]}.get(program)
    if begin is None or re.search(r"[|;&<>$*]", command):
        return ["sh", "-c", command], {}
    return [sys.executable, *begin, *arguments], variables


@pytest.mark.parametrize("command", RUN)
def test_a_shell_command_does_what_the_document_says(command: str, folder: Path) -> None:
    shutil.rmtree(folder / "converted_folder", ignore_errors=True)
    # On a CPU without bfloat16 nothing would be converted; what the command itself sets wins.
    words, variables = without_shell(command)
    ended = start(words, folder, **{"AMP_TF_PRECISION": "bfloat16", **variables})
    assert ended.returncode == 0, ended.stderr
    if "train.py" in command:
        assert re.search(r"amp_tf: 1 graph, [1-9]\d* of \d+ nodes converted to bfloat16", ended.stderr), ended.stderr
    elif "amp-tf compare" in command:
        assert "healthy in float16" in ended.stdout, ended.stdout
    elif "amp-tf report" in command:
        assert re.match(r"train.py: \d+ % of matmul and convolution work in 16 bit", ended.stdout), ended.stdout
    elif "--all" in command:
        assert "sequential_1/dense_1/MatMul" in ended.stdout
        assert isinstance(json.loads(ended.stdout), list) if "--json" in command else "\tMatMul\t" in ended.stdout
    elif "explain" in command:
        assert ended.stdout.startswith("sequential_1/dense_1/Relu (Relu, on the clear list) computes in ")
    else:
        kind = "float16" if "float16" in command.split() else "bfloat16"
        assert re.match(rf"\d+ graphs, [1-9]\d* of \d+ nodes converted to {kind}", ended.stdout)
        assert (folder / "converted_folder" / "saved_model.pb").exists() == ("--dry-run" not in command)


@pytest.mark.parametrize("document", AFTER)
def test_the_python_blocks_run_as_they_stand(document: str, folder: Path) -> None:
    shutil.rmtree(folder / "converted_folder", ignore_errors=True)
    found = [block for block in blocks("python", document) if block != SWITCH]
    program = "\n".join([BEFORE, *found, AFTER[document], 'print("all blocks ran")'])
    ended = start([sys.executable, "-c", program], folder, AMP_TF_PRECISION="float16")
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["all blocks ran"]), ended.stderr


def test_the_case_that_compares_goes_wrong_where_the_document_says(folder: Path) -> None:
    model, program = blocks("python", COMPARING)
    (folder / "houses.py").write_text(model)
    ended = start([sys.executable, "-c", program], folder)
    (said,) = re.findall(r"keep_float32=\['(\S+?)'", ended.stdout)[:1] or [ended.stderr]
    assert f"AMP_TF_KEEP_FLOAT32='{said}'" in (ROOT / COMPARING).read_text(encoding="utf-8")


def test_all_python_blocks_are_run() -> None:
    with_blocks = {document for document in DOCUMENTS if blocks("python", document)}
    assert with_blocks == {*AFTER, COMPARING}
    assert SWITCH in blocks("python", "README.md")  # test_a_shell_command_… sets it


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    path = ROOT / document
    for link in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        headings = HEADING.findall(target.read_text(encoding="utf-8")) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
        assert not anchor or anchor in anchors, link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_shell_command_is_run_or_known(document: str) -> None:
    known = {*RUN, *ELSEWHERE}
    assert [command for command in shell_commands(document) if command not in known] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", SHORT)
def test_a_benchmark_of_the_documents_runs(command: str, folder: Path) -> None:
    program, path = command.split()
    ended = start([program, str(ROOT / path), *SHORT[command].split()], folder, PYTHONPATH=str(ROOT))
    assert ended.returncode in (0, 1), ended.stderr  # 1: a limit was passed, as two starts may
    assert re.search(r"\d\.\d", ended.stdout)
    assert "Traceback" not in ended.stderr


def test_what_is_said_to_be_run_elsewhere_is_in_a_document() -> None:
    assert set(ELSEWHERE) <= {command for document in DOCUMENTS for command in shell_commands(document)}


def source_of(program: str) -> str:
    """A program's text, with its neighbours' where it is a module of a package of ``benchmarks/``; empty for none."""
    name = program if program.startswith((".", "scripts/")) or "/" in program else program.replace(".", "/")
    path = next((path for path in (ROOT / f"{name}.py", ROOT / name) if path.exists()), None)
    if path is None:
        return ""
    folder = path if path.is_dir() else path.parent
    is_package = path.is_dir() or folder.parent.name == "benchmarks"
    files = folder.glob("*.py") if is_package else [path]
    return "".join(file.read_text(encoding="utf-8") for file in files)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_program_in_the_text_is_there_and_has_the_options_that_are_named(document: str) -> None:
    text = FENCED.sub(r"`\2`", (ROOT / document).read_text(encoding="utf-8"))
    wrong = []
    for quoted in re.findall(r"`[^`]+`", text):
        for found in PROGRAM.finditer(quoted):
            source = source_of(found["program"])
            options = OPTION.findall(found["options"].partition("\n\n")[0])
            wrong += [] if source else [found["program"]]
            wrong += [f"{found['program']} {option}" for option in options if f'"{option}"' not in source]
    assert wrong == []
