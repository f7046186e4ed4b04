"""``amp-tf rewrite`` on files."""

import os
import shutil
import signal
import sys

import pytest
import tensorflow as tf

from amp_tf.cli.main import main
from amp_tf.offline import saved_model
from amp_tf.offline.reading import read_graph_file, write_graph_file
from amp_tf.oplists.hardware import Hardware
from tests import processes


def test_rewrite_converts_a_file_and_reports(graph_file, tmp_path, capsys):
    arguments = ["rewrite", str(graph_file), str(tmp_path / "out.pbtxt"), "--precision", "bfloat16"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 graph, 2 of 4 nodes converted to bfloat16 (matmuls and convolutions: 1 of 1), 2 casts",
        "  1 of 1 Relu",
        "  1 of 1 MatMul",
        "left in float32:",
        "  1 node (1 Exp), such as 'e': its op is on the deny list",
    ]
    types = {
        node.name: node.attr["T"].type
        for node in read_graph_file(tmp_path / "out.pbtxt").node
        if node.name in "rme"
    }
    assert types == {
        "r": tf.bfloat16.as_datatype_enum,
        "m": tf.bfloat16.as_datatype_enum,
        "e": tf.float32.as_datatype_enum,
    }


def test_a_result_in_which_nothing_is_converted_is_told_to_be_a_copy(
    graph_file, tmp_path, capsys, without_16_bit
):
    out = tmp_path / "o.pb"
    options = (
        "--precision float16 --target gpu is what a GPU would run; --precision bfloat16 converts "
        "for this CPU.\n"
    )
    assert main(["rewrite", str(graph_file), str(out)]) == 0
    assert capsys.readouterr().err == f"{out} is an unconverted copy of {graph_file}.\n{options}"
    assert read_graph_file(out) == read_graph_file(graph_file)
    assert main(["rewrite", str(graph_file), "--dry-run"]) == 0
    assert (
        capsys.readouterr().err
        == f"The result would be an unconverted copy of {graph_file}.\n{options}"
    )
    for named in (["--precision", "bfloat16"], ["--precision", "float16", "--target", "gpu"]):
        assert main(["rewrite", str(graph_file), str(out), "--force", *named]) == 0
        assert "copy" not in capsys.readouterr().err
        assert read_graph_file(out) != read_graph_file(graph_file)


def test_a_dry_run_says_the_same_and_writes_nothing(graph_file, tmp_path, capsys):
    options = ["--precision", "bfloat16", "--keep-float32", "nosuch"]
    assert main(["rewrite", str(graph_file), "--dry-run", *options]) == 0
    dry = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [graph_file]
    assert main(["rewrite", str(graph_file), str(tmp_path / "out.pb"), *options]) == 0
    assert capsys.readouterr() == (
        dry,
        f"{tmp_path / 'out.pb'} is written.\nNo node's name matches: nosuch\n",
    )
    assert main(["rewrite", str(graph_file)]) == 1
    assert capsys.readouterr().err == (
        "amp-tf rewrite: there is no OUT. Name a file or folder to write, or add --dry-run.\n"
    )


def test_what_is_there_is_replaced_only_by_force(graph_file, tmp_path, capsys):
    before = graph_file.read_bytes()
    other = tmp_path / "other.pb"
    other.write_text("in the way")
    link = tmp_path / "link.pb"
    link.symlink_to(graph_file)
    for result, what in (
        (graph_file, "it is the input, which would be overwritten"),
        (link, "it is the input, which would be overwritten"),
        (other, "the file exists"),
    ):
        command = ["rewrite", str(graph_file), str(result), "--precision", "bfloat16"]
        assert main(command) == 1
        assert capsys.readouterr().err == (
            f"amp-tf rewrite: {result}: {what}. Name another file, or replace it with --force; "
            "nothing was written.\n"
        )
        assert graph_file.read_bytes() == before
    assert main([*command, "--force"]) == 0
    assert len(read_graph_file(other).node) == 6


def test_a_result_whose_type_changed_is_told_until_it_is_preserved(graph_file, tmp_path, capsys):
    graph = read_graph_file(graph_file)
    del graph.node[-1:]  # the Exp, which stays in float32
    write_graph_file(graph, tmp_path / "product.pb")
    command = ["rewrite", str(tmp_path / "product.pb"), "--dry-run", "--precision", "bfloat16"]
    main(command)
    assert (
        capsys.readouterr().err
        == "Results of 16 bit: m. With --preserve NODE a node stays float32.\n"
    )
    main([*command, "--preserve", "m"])
    assert "Results of 16 bit" not in capsys.readouterr().err


@pytest.fixture
def model(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "model"))
    return tmp_path / "model"


def test_an_interrupted_conversion_leaves_nothing_half_made(model, tmp_path, capsys, monkeypatch):
    def interrupted(source, target, **options):
        (target / "variables").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(saved_model.shutil, "copytree", interrupted)
    assert main(["rewrite", str(model), str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "amp-tf rewrite: interrupted\n"
    assert list(tmp_path.iterdir()) == [model]
    (tmp_path / "out").mkdir()  # an empty one that was there stays
    assert main(["rewrite", str(model), str(tmp_path / "out")]) == 130
    assert sorted(tmp_path.rglob("*")) == sorted([tmp_path / "out", model, *model.rglob("*")])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_so_does_one_that_a_signal_ends_also_while_it_cleans_up(
    number, model, tmp_path, monkeypatch
):
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("these tests run under nohup, where a program is to go on")

    def ended(source, target, **options):
        (target / "variables").mkdir(parents=True)
        signal.raise_signal(number)

    def removed_slowly(path, **options):
        signal.raise_signal(number)
        original(path, **options)

    original = shutil.rmtree
    monkeypatch.setattr(saved_model.shutil, "copytree", ended)
    monkeypatch.setattr(saved_model.shutil, "rmtree", removed_slowly)
    before = signal.getsignal(number), sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main(["rewrite", str(model), str(tmp_path / "out")])
    assert end.value.code == 128 + number
    assert (signal.getsignal(number), sorted(tmp_path.rglob("*"))) == before


KILLED = """
import os, signal, sys
from amp_tf.cli.main import main
from amp_tf.offline import saved_model
copy = saved_model.shutil.copytree
def copied(*args, **options):
    result = copy(*args, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return result
saved_model.shutil.copytree = copied
sys.exit(main(sys.argv[1:]))
"""


def test_a_process_that_sigterm_ends_has_the_status_of_a_shell_and_leaves_its_target_as_it_was(
    model, tmp_path
):
    out = tmp_path / "out"
    assert main(["rewrite", str(model), str(out)]) == 0
    (out / "mark").touch()
    command = [sys.executable, "-c", KILLED, "rewrite", str(model), str(out), "--force"]
    ended = processes.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGTERM, "")
    assert (out / "mark").exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model", "out"]


def test_pipes_and_devices_are_refused_where_a_model_should_be(graph_file, model, tmp_path, capsys):
    out, pipe, zero = (str(tmp_path / name) for name in ("out", "m.pb", "zero.pb"))
    os.mkfifo(pipe)
    os.symlink("/dev/zero", zero)
    for path, kind in ((pipe, "pipe"), (zero, "device")):
        for command in (["rewrite", path, out], ["explain", path, "m"], ["report", path]):
            assert main(command) == 1
            assert (
                f"{path}: cannot be read (it is a {kind}, not a file). Name a "
                in capsys.readouterr().err
            )
    os.rename(pipe, model / "variables" / "variables.data-00000-of-00002")
    for command in (
        ["rewrite", str(model), out],
        ["report", str(model)],
        ["explain", str(model), "m"],
    ):
        assert main(command) == 1
        assert (
            "variables.data-00000-of-00002: cannot be read (it is a pipe, not a file). Remove it "
            "from the" in (capsys.readouterr().err)
        )
    assert not os.path.exists(out)


def test_a_model_is_replaced_only_by_force_and_as_a_whole(model, tmp_path, capsys):
    result = tmp_path / "out"
    assert main(["rewrite", str(model), str(result)]) == 0
    (result / "mark").touch()
    assert main(["rewrite", str(model), str(result)]) == 1
    assert (
        "out: the folder is not empty. Name a new folder, or have the model there replaced "
        "(--force, " in (capsys.readouterr().err)
    )
    assert (result / "mark").exists()
    assert main(["rewrite", str(model), str(result), "--force"]) == 0
    assert not (result / "mark").exists()
    assert main(["rewrite", str(model), str(model), "--force"]) == 0
    tf.saved_model.load(str(model))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model", "out"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    assert main(["rewrite", str(model), str(tmp_path / "other"), "--force"]) == 1
    assert (tmp_path / "other" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("logits:0", "the graph has no node 'logits:0'. The closest names: logits."),
        (
            "product",
            "node 'product' is in a function, and only nodes of the graph itself are preserved. "
            "Keep it in",
        ),
    ],
)
def test_a_node_to_preserve_that_the_graph_does_not_have_is_one_line_and_status_1(
    tmp_path, capsys, name, message
):
    inner = tf.function(lambda x: tf.matmul(x, x, name="product"))
    outer = tf.function(lambda x: tf.identity(inner(x), name="logits")).get_concrete_function(
        tf.TensorSpec((2, 2))
    )
    write_graph_file(outer.graph.as_graph_def(), tmp_path / "in.pb")
    assert (
        main(["rewrite", str(tmp_path / "in.pb"), str(tmp_path / "out.pb"), "--preserve", name])
        == 1
    )
    error = capsys.readouterr().err
    assert error.startswith(f"amp-tf rewrite: --preserve: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out.pb").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rewrite", "{long}", "out"], "(File name too long)"),
        (["rewrite", "model", "{long}"], "(File name too long)"),
        (["explain", "{long}", "x"], "(File name too long)"),
        (["rewrite", "model", "file"], "amp-tf rewrite: file: "),
        (["rewrite", "model", "file/below"], "amp-tf rewrite: file/below: "),
        (
            ["rewrite", "model", "out", "--preserve", "x"],
            "--preserve: is for GraphDef files, and this is a model. ",
        ),
        (
            ["rewrite", "in.pb", "out.pb", "--keep-float32", "@no.txt"],
            "keep_float32: no.txt: it cannot be read (No such file or directory).",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_1(
    arguments, said, model, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    assert main([argument.format(long="n" * 300) for argument in arguments]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "in the way"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["rewrite nosuch out", "explain nosuch node"])
def test_a_model_that_is_not_there_is_named_before_tensorflow_is_imported(command, tmp_path):
    program = (
        f"import sys; from amp_tf.cli.main import main; print(main({command.split()}), "
        "'tensorflow' in sys.modules)"
    )
    ended = processes.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.stdout == "1 False\n"
    assert "nosuch: cannot be read (No such file or directory)" in ended.stderr


def test_a_batch_size_or_a_range_of_them_decides_under_auto(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Hardware, "detect_cpu", classmethod(lambda cls: cls(cpu_has_bf16=True)))
    w = tf.Variable(tf.zeros((1024, 1024)))
    serve = tf.function(
        lambda x: tf.matmul(x, w, name="product"), [tf.TensorSpec((None, 1024), name="x")]
    )
    module = tf.Module()
    module.w, module.serve = w, serve
    path = str(tmp_path / "served")
    tf.saved_model.save(module, path, signatures=serve)
    for batch, precision in (
        (("--batch", "8192"), "bfloat16"),
        (("--batch", "1-8192"), "float32"),
        ((), "float32"),
    ):
        assert main(["rewrite", path, "--dry-run", *batch]) == 0
        assert ("nodes converted to bfloat16" in capsys.readouterr().out) == (
            precision == "bfloat16"
        )
        assert main(["explain", path, "--all", "--op", "MatMul", *batch]) == 0
        assert {line.split("\t")[0] for line in capsys.readouterr().out.splitlines()} == {precision}
    for wrong in ("0", "few", "8-1", "1-2-3", "-4"):
        assert main(["rewrite", path, "--dry-run", f"--batch={wrong}"]) == 1
        error = capsys.readouterr().err
        assert error.startswith(
            f"amp-tf rewrite: --batch: '{wrong}' is not a valid value. Valid values: a batch size"
        )
