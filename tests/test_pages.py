"""Every command and output of the pages runs here, as it stands. One test a page.

A page's blocks run in their order, in a folder with the programs and models that the pages speak
of. A block's first line says its kind, where readers do not see it:

- ``console``: commands after ``$``, and what they print. Numbers may differ, ``…`` stands for any
  text, and alone on a line for any lines. ``exit 1`` is the status of the last one.
- ``sh``: commands, a line each, all with status 0; a training must have converted something.
- ``python``: the blocks of a page are one program, which runs last. ``file: NAME`` makes the block
  a file instead.
- ``with FILE`` copies a file of the checkout beside them, and ``not run: WHY`` says what else runs
  it.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from amp_tf.cli.commands import parser
from amp_tf.cli.main import main
from tests import processes
from tests.hooks import running

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PAGES = ("README.md", *DOCS, "CONTRIBUTING.md", "docker/README.md", "benchmarks/README.md")
FENCED = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MADE = re.compile(r"<!-- (\w+): made by .*?<!-- end of \1 -->", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PROGRAM = re.compile(
    r"(?<![\w/])(scripts/\w+(?:\.py)?|benchmarks/\w+\.py|\.ci/run|(?<=-m )benchmarks[.\w]*)"
    r"((?:[ \n]+(?!scripts/|python |-- )[^\s`]+)*)"
)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")
SETTING = re.compile(r"\w+=")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
ALIKE = re.compile(
    r"amp-tf (compare|explain) (?!.*--html)|(?!amp-tf|.*(REPORT=|FLOAT32=@)).* python train\.py$"
)
CONVERTED = re.compile(r"amp_tf: \d+ graphs?, [1-9][\d,]* of [\d,]+ nodes converted")

MODEL = "docs/ten-minutes.md"  # whose train.py all pages speak of
EXPORT = """
import numpy as np
from train import model
for folder in ("model_folder", "saved_model_folder"):
    model.export(folder, verbose=False)
np.savez("inputs.npz", **{model.inputs[0].name: np.ones((8, 2), np.float32)})
"""
# Python blocks of a page begin with this, and end with the assertions below.
BEFORE = """
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
TRAINED = (
    "assert float(variable) < 1 and optimizer.inner_optimizer is not optimizer and float(loss) <= 2"
)
AFTER = {
    "README.md": "assert not amp_tf.is_enabled()",
    "docs/compare.md": "assert not compared.is_healthy and len(compared.patterns) >= 2",
    "docs/keep-float32.md": "from amp_tf.oplists import op_names\n"
    "assert op_names.find_registered('MyAttention')",
    "docs/loss-scaling.md": f"{TRAINED} and float(scaler.loss_scale) > 1",
    "docs/python.md": "assert not amp_tf.is_enabled()",
    "docs/report.md": "import os\nassert os.path.exists('report.html')",
    "docs/serving.md": "assert result.changed\n"
    "assert 'logits' in [node.name for node in result.graph.node]",
    "docs/ten-minutes.md": "assert report.by_layer() is not None",
    "docs/time.md": "assert len(timed.mixed) >= 3",
}


def blocks(page):
    """Language, what else the first line says, and text."""
    yield from FENCED.findall((ROOT / page).read_text(encoding="utf-8"))


def commands(text):
    lines = text.replace("\\\n", " ").splitlines()
    return [
        " ".join(shlex.split(line, comments=True, posix=False)) for line in lines if line.strip()
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with what the commands name."""
    folder = tmp_path_factory.mktemp("models")
    (text,) = [text for _, about, text in blocks(MODEL) if about == "file: train.py"]
    (folder / "train.py").write_text(text)
    (folder / "bin").mkdir()
    scripts = {
        "python": f'exec {shlex.quote(sys.executable)} "$@"',
        "mpirun": 'shift 2; exec "$@"',
    }  # one for four
    for name, script in scripts.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    running.run(["-c", EXPORT], folder, {})
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))])
def test_a_page_does_what_it_says(page, models, tmp_path):
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    program = []
    for language, about, text in blocks(page):
        kind, _, word = about.partition(" ")
        if kind == "with":
            shutil.copy(ROOT / word, tmp_path)
        if about.startswith("not run: ") or language in ("text", "json", "mermaid"):
            continue
        if kind == "file:":
            (tmp_path / word).write_text(text)
        elif language == "python":
            program.append(text)
        elif language == "console":
            check_session(text, int(word) if kind == "exit" else 0, tmp_path)
        else:
            assert language == "sh", f"{page}: a block of {language} is for nobody to run"
            check_commands(text, tmp_path)
    if program:
        code = "\n".join([BEFORE, *program, AFTER[page], 'print("all blocks ran")'])
        ended = start(["-c", code], tmp_path, AMP_TF_PRECISION="float16")
        assert ended.returncode == 0, ended.stdout
        assert "all blocks ran" in ended.stdout


def check_commands(text, folder):
    """Runs commands, of which a training that is turned on must convert something."""
    for command in commands(text):
        ended = start(command, folder)
        assert ended.returncode == 0, ended.stdout
        is_training = " python " in f" {command}"
        if is_training and "TF_ENABLE_AUTO_MIXED_PRECISION=1" in command:
            assert CONVERTED.search(ended.stdout), ended.stdout


def check_session(text, status, folder):
    """Runs the commands of a console, each of which must print what stands below it."""
    first, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not first, f"a console begins with a command, not with {first!r}"
    for part in parts:
        command, _, said = part.replace("\\\n", " ").partition("\n")
        ended = start(command, folder)
        assert ended.returncode == (status if part is parts[-1] else 0), ended.stdout
        assert re.search(pattern(said), ended.stdout, re.MULTILINE), (
            f"{command}\n{said}\nbut it says\n{ended.stdout}"
        )


def pattern(said):
    """A regular expression for an output."""
    found = ""
    for line in said.splitlines():
        if line == "…":
            found += r"(?:.*\n)*?"
            continue
        for word in re.split(r"(…|\s+)", line):
            if word == "…":
                found += ".*"
            elif word.isspace():
                found += r"\s+"
            else:
                found += NUMBER.pattern.join(map(re.escape, NUMBER.split(word)))
        found += r"\n"
    return found


_ended = {}


def start(command, folder, **variables):
    """Runs a command, or Python with arguments; what it prints is in one stream.

    A command that neither writes a file nor reads one of its page's says the same on each page, and
    runs once.
    """
    if isinstance(command, list) or not ALIKE.match(command):
        return _start(command, folder, **variables)
    return _ended.get(command) or _ended.setdefault(command, _start(command, folder))


def _start(command, folder, **variables):
    words = shlex.split(command) if isinstance(command, str) else ["python", *command]
    while SETTING.match(words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    # On a CPU without bfloat16 nothing would be converted; what the command itself sets wins.
    environ = running.environment(folder, {"AMP_TF_PRECISION": "bfloat16", **variables})
    environ["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    environ["PYTHONUNBUFFERED"] = "1"  # so that both streams come in order, as on a terminal
    if words[0] == "amp-tf" and words[1] in ("compare", "tune") and "--" in words:
        return _in_this_process(words, folder, environ)
    programs = {"python": [], "amp-tf": ["-m", "amp_tf.cli.main"]}
    assert words[0] in programs, f"{command}: only python and amp-tf run here; say 'not run: WHY'"
    command = [sys.executable, *programs[words[0]], *words[1:]]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return processes.run(command, cwd=folder, env=environ, timeout=400, **streams)


def _in_this_process(words, folder, environ):
    """Runs a command that starts programs, so that these are forks."""
    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.dict(os.environ, environ),
        (folder / "said.txt").open("w+") as said,
    ):
        patch.chdir(folder)
        patch.setattr(subprocess, "Popen", processes.start)
        with _written_to(said):
            status = main([sys.executable if word == "python" else word for word in words[1:]])
        return subprocess.CompletedProcess(words, status, Path(said.name).read_text())


@contextlib.contextmanager
def _written_to(file):
    """Redirects the output of this process, and of those that it starts, to a file."""
    kept = [os.dup(stream) for stream in (1, 2)]
    try:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            yield
            file.flush()
    finally:
        for stream, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)


def test_pages_are_short():
    """Without what scripts make."""
    limits = {
        "README.md": 1100,
        "CONTRIBUTING.md": 3000,
        "benchmarks/README.md": 1500,
        "docker/README.md": 900,
    }
    words = {
        page: len(MADE.sub("", (ROOT / page).read_text(encoding="utf-8")).split()) for page in PAGES
    }
    assert {page: count for page, count in words.items() if count > limits.get(page, 700)} == {}
    assert sum(words[page] for page in DOCS) <= 12_000


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def anchor_of(heading):
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    path = ROOT / page
    for link in LINK.findall(FENCED.sub("", text_of(page))):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        if anchor:
            headings = HEADING.findall(target.read_text(encoding="utf-8"))
            assert anchor in map(anchor_of, headings), link


@pytest.mark.parametrize("page", [page for page in DOCS if page != "docs/README.md"])
def test_every_page_is_in_the_index(page):
    assert f"]({page.removeprefix('docs/')}" in text_of("docs/README.md")


def source_of(program):
    """A program's text, with its neighbours' where it is a module of a package of ``benchmarks/``;
    empty for none.
    """
    is_module = program.startswith("benchmarks") and "/" not in program
    path = ROOT / (program.replace(".", "/") if is_module else program)
    if is_module and not path.is_dir():
        path = path.with_suffix(".py")
    if not path.exists():
        return ""
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or folder.parent.name == "benchmarks":
        files = list(folder.glob("*.py"))
    else:
        files = [path]
    return "".join(file.read_text(encoding="utf-8") for file in files)


@pytest.mark.parametrize("page", PAGES)
def test_every_program_in_a_sentence_is_there_and_has_the_options_that_are_named(page):
    text = FENCED.sub(r"`\3`", text_of(page))
    for quoted in re.findall(r"`[^`]+`", text):
        for program, options in PROGRAM.findall(quoted):
            source = source_of(program)
            assert source, program
            for option in OPTION.findall(options.partition("\n\n")[0]):
                assert f'"{option}"' in source, f"{program} {option}"


@pytest.mark.parametrize("page", PAGES)
def test_every_amp_tf_command_in_a_sentence_has_the_options_that_are_named(page):
    (subcommands,) = [action for action in parser()._actions if action.dest == "command_name"]
    for quoted in re.findall(r"`amp-tf ([^`]+)`", FENCED.sub("", text_of(page))):
        name, *words = quoted.partition(" -- ")[0].split()
        help_text = subcommands.choices[name].format_help()
        for word in words:
            assert not word.startswith("--") or word in help_text, quoted
