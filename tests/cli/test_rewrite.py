"""``amp-tf rewrite`` on files."""

import os
import re
import shutil
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.cli.main import main
from amp_tf.offline import saved_model
from amp_tf.offline.reading import read_graph_file, write_graph_file
from amp_tf.oplists.hardware import Hardware
from tests import processes

FOR_BFLOAT16 = ("--precision", "bfloat16", "--target", "cpu")


def test_rewrite_converts_a_file_and_reports(graph_file, tmp_path, tell):
    out = tmp_path / "out.pbtxt"
    assert tell("rewrite", graph_file, out, *FOR_BFLOAT16).out.splitlines() == [
        "1 graph, 2 of 4 nodes converted to bfloat16 (matmuls and convolutions: 1 of 1), 2 casts",
        "  1 of 1 Relu",
        "  1 of 1 MatMul",
        "left in float32:",
        "  1 node (1 Exp), such as 'e': its op is on the deny list",
    ]
    types = {node.name: node.attr["T"].type for node in read_graph_file(out).node}
    assert types["r"] == types["m"] == tf.bfloat16.as_datatype_enum
    assert types["e"] == tf.float32.as_datatype_enum


def test_a_copy_whose_products_float32_computes_is_told_until_it_is_for_another_machine(
    graph_file, tell, without_16_bit
):
    command = ["rewrite", graph_file, "--dry-run", "--precision", "bfloat16"]
    told = "On this CPU float32 computes the matmuls and convolutions"
    assert told in tell(*command).err
    for target in ("cpu", "gpu"):
        assert told not in tell(*command, "--target", target).err


def test_a_result_in_which_nothing_is_converted_is_told_to_be_a_copy(
    graph_file, tmp_path, tell, without_16_bit
):
    out = tmp_path / "o.pb"
    options = (
        "--precision float16 --target gpu is what a GPU would run; --precision bfloat16 "
        "--target cpu what a CPU with bfloat16 would.\n"
    )
    assert (
        tell("rewrite", graph_file, out).err
        == f"{out} is an unconverted copy of {graph_file}.\n{options}"
    )
    assert read_graph_file(out) == read_graph_file(graph_file)
    assert (
        tell("rewrite", graph_file, "--dry-run").err
        == f"The result would be an unconverted copy of {graph_file}.\n{options}"
    )
    for named in (["--precision", "bfloat16"], ["--precision", "float16", "--target", "gpu"]):
        assert "copy" not in tell("rewrite", graph_file, out, "--force", *named).err
        assert read_graph_file(out) != read_graph_file(graph_file)


def test_a_dry_run_says_the_same_and_writes_nothing(graph_file, tmp_path, tell):
    options = [*FOR_BFLOAT16, "--keep-float32", "nosuch"]
    dry = tell("rewrite", graph_file, "--dry-run", *options).out
    assert list(tmp_path.iterdir()) == [graph_file]
    assert tell("rewrite", graph_file, tmp_path / "out.pb", *options) == (
        dry,
        f"{tmp_path / 'out.pb'} is written.\nNo node's name matches: nosuch\n",
    )
    assert tell("rewrite", graph_file, status=1).err == (
        "amp-tf rewrite: there is no OUT. Name a file or folder to write, or add --dry-run.\n"
    )


def test_what_is_there_is_replaced_only_by_force(graph_file, tmp_path, tell):
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
        assert tell(*command, status=1).err == (
            f"amp-tf rewrite: {result}: {what}. Name another file, or replace it with --force; "
            "nothing was written.\n"
        )
        assert graph_file.read_bytes() == before
    assert main([*command, "--force"]) == 0
    assert len(read_graph_file(other).node) > 4


def test_a_result_whose_type_changed_is_told_until_it_is_preserved(graph_file, tmp_path, capsys):
    graph = read_graph_file(graph_file)
    del graph.node[-1:]  # the Exp, which stays in float32
    write_graph_file(graph, tmp_path / "product.pb")
    command = ["rewrite", str(tmp_path / "product.pb"), "--dry-run", *FOR_BFLOAT16]
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


def test_a_model_is_replaced_only_by_force_and_as_a_whole(model, tmp_path, tell):
    result = tmp_path / "out"
    command = ["rewrite", str(model), str(result)]
    assert main(command) == 0
    (result / "mark").touch()
    said = tell(*command, status=1).err
    assert "out: the folder is not empty. Name a new folder, or have the model there repl" in said
    assert (result / "mark").exists()
    assert main([*command, "--force"]) == 0
    assert not (result / "mark").exists()
    assert main(["rewrite", str(model), str(model), "--force"]) == 0
    tf.saved_model.load(str(model))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model", "out"]


def test_a_folder_that_holds_no_model_is_not_replaced(model, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    assert main(["rewrite", str(model), str(tmp_path / "other"), "--force"]) == 1
    assert (tmp_path / "other" / "thesis.tex").exists()


def test_an_interrupted_conversion_leaves_nothing_half_made(model, tmp_path, tell, monkeypatch):
    def interrupted(source, target, **options):
        (target / "variables").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(saved_model.shutil, "copytree", interrupted)
    assert (
        tell("rewrite", model, tmp_path / "out", status=130).err == "amp-tf rewrite: interrupted\n"
    )
    assert list(tmp_path.iterdir()) == [model]
    (tmp_path / "out").mkdir()  # an empty one that was there stays
    assert main(["rewrite", str(model), str(tmp_path / "out")]) == 130
    assert sorted(tmp_path.rglob("*")) == sorted([tmp_path / "out", model, *model.rglob("*")])


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
            ["rewrite", "file", "out.pb", "--weights", "f16"],
            "--weights: is for models, and this is a GraphDef file. Name a SavedModel's folder",
        ),
        (
            ["rewrite", "file.keras", "out"],
            "amp-tf rewrite: file.keras: holds no Keras model. Save it again",
        ),
        (
            ["rewrite", "absent", "out", "--weights", "f16"],
            "amp-tf rewrite: absent: cannot be read (No such file or directory). ",
        ),
        (
            ["rewrite", "file", "out.pb", "--check", "inputs.npz"],
            "--check: is for models, and this is a GraphDef file. Name a SavedModel's folder",
        ),
        (
            ["rewrite", "in.pb", "out.pb", "--keep-float32", "@no.txt"],
            "no.txt: it cannot be read (No such file or directory).",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_1(
    arguments, said, model, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "file.keras").write_text("no zip file")
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_a_signal_ends_leaves_everything_as_it_was_also_while_it_cleans_up(
    number, model, tmp_path, monkeypatch
):
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("these tests run under nohup, where a program is to go on")
    out = tmp_path / "out"
    assert main(["rewrite", str(model), str(out)]) == 0
    copy = shutil.copytree
    remove = shutil.rmtree

    def ended(source, target, **options):
        copy(source, target, **options)
        signal.raise_signal(number)

    def removed_slowly(path, **options):
        signal.raise_signal(number)
        remove(path, **options)

    monkeypatch.setattr(saved_model.shutil, "copytree", ended)
    monkeypatch.setattr(saved_model.shutil, "rmtree", removed_slowly)
    handler = signal.getsignal(number)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main(["rewrite", str(model), str(out), "--force"])
    assert end.value.code == 128 + number
    assert signal.getsignal(number) == handler
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("command", ["rewrite {} out", "explain {} m", "report {}"])
def test_pipes_and_devices_are_refused_where_a_model_should_be(
    kind, command, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if kind == "pipe":
        os.mkfifo("m.pb")
    else:
        os.symlink("/dev/zero", "m.pb")
    assert main(command.format("m.pb").split()) == 1
    said = capsys.readouterr().err
    assert f"m.pb: cannot be read (it is a {kind}, not a file). Name a " in said


@pytest.mark.parametrize("command", ["rewrite model out", "explain model m", "report model"])
@pytest.mark.usefixtures("model")
def test_a_pipe_among_the_files_of_a_model_is_refused(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("model/variables/variables.data-00000-of-00002")
    assert main(command.split()) == 1
    said = capsys.readouterr().err
    assert "00000-of-00002: cannot be read (it is a pipe, not a file). Remove it from the" in said
    assert not os.path.exists("out")


@pytest.fixture
def calling(tmp_path):
    """The file of a graph that calls a function with a product."""
    inner = tf.function(lambda x: tf.matmul(x, x, name="product"))
    outer = tf.function(lambda x: tf.identity(inner(x), name="logits"))
    graph = outer.get_concrete_function(tf.TensorSpec((2, 2))).graph.as_graph_def()
    write_graph_file(graph, tmp_path / "in.pb")
    return tmp_path / "in.pb"


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
    calling, tmp_path, tell, name, message
):
    out = tmp_path / "out.pb"
    error = tell("rewrite", calling, out, "--preserve", name, status=1).err
    assert error.startswith(f"amp-tf rewrite: --preserve: {message}")
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The folder of a model of one large product, on a CPU with bfloat16."""
    monkeypatch.setattr(Hardware, "detect_cpu", classmethod(lambda cls: cls(cpu_has_bf16=True)))
    module = tf.Module()
    module.w = tf.Variable(tf.zeros((1024, 1024)))
    module.serve = tf.function(
        lambda x: tf.matmul(x, module.w), [tf.TensorSpec((None, 1024), name="x")]
    )
    tf.saved_model.save(module, str(tmp_path / "served"), signatures=module.serve)
    return str(tmp_path / "served")


@pytest.mark.parametrize(
    ("batch", "precision"),
    [(["--batch", "8192"], "bfloat16"), (["--batch", "1-8192"], "float32"), ([], "float32")],
)
def test_a_batch_size_or_a_range_of_them_decides_under_auto(batch, precision, served, tell):
    is_converted = "nodes converted to bfloat16" in tell("rewrite", served, "--dry-run", *batch).out
    assert is_converted is (precision == "bfloat16")
    lines = tell("explain", served, "--all", "--op", "MatMul", *batch).out.splitlines()
    assert {line.split("\t")[0] for line in lines} == {precision}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "Decided for a batch of 1 and one of 64: what is faster in both is converted. "),
        (["--batch", "2-8"], "Decided for a batch of 2 and one of 8: what is faster in both is "),
        (["--batch", "32"], "Decided for a batch of 32: what is faster is converted. --batch "),
        (["--batch", "32", "--precision", "bfloat16"], "--batch decides nothing here: it is for "),
        (["--precision", "bfloat16"], ""),
    ],
)
def test_the_batches_for_which_a_copy_was_decided_are_told(options, told, served, tell):
    error = tell("rewrite", served, "--dry-run", *options).err
    assert told in error
    assert bool(told) is ("batch" in error)


@pytest.mark.parametrize("wrong", ["0", "few", "8-1", "1-2-3", "-4"])
def test_what_is_no_batch_size_is_refused(wrong, capsys):
    assert main(["rewrite", "nowhere", "--dry-run", f"--batch={wrong}"]) == 1
    told = f"--batch: '{wrong}' is not a valid value. Valid values: a batch size"
    assert capsys.readouterr().err.startswith(f"amp-tf rewrite: {told}")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_check_says_where_shapes_differ_and_measures_complex_outputs(tmp_path, tell):
    module = tf.Module()
    module.w = tf.Variable(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, 64), name="x")])
    def serve(x):
        y = tf.matmul(x, module.w)
        spectrum = tf.complex(y, -y)
        kept = tf.boolean_mask(y, y > 0)
        root = tf.sqrt(x) / 0.0  # nan and inf in both
        return {"kept": kept, "place": tf.where(y > 0), "root": root, "spectrum": spectrum}

    tf.saved_model.save(module, str(tmp_path / "in"), signatures={"serving_default": serve})
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).normal(size=(500, 64)))
    command = ["rewrite", tmp_path / "in", tmp_path / "out", "--check", tmp_path / "x.npz"]
    out, err = tell(*command, *FOR_BFLOAT16)
    assert re.search(r"^  kept: its shape is \(\d+,\), and \(\d+,\) in the original$", out, re.M)
    assert re.search(r"^  place: its shape is \(\d+, 2\), and \(\d+, 2\) in the ", out, re.M)
    assert "  root: error at most 0, 0 on average" in out.splitlines()
    assert re.search(r"^  spectrum: error at most \S+, 0\.\d+ % of the largest value, ", out, re.M)
    assert err == f"{tmp_path / 'out'} is written.\n"
