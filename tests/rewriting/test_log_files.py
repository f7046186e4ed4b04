from __future__ import annotations

import itertools
import resource

import pytest
from google.protobuf import text_format

import amp_tf
from amp_tf.errors import GraphError, RewriteError
from amp_tf.oplists.hardware import Hardware
from amp_tf.rewriting import pipeline, recording
from tests.small_graphs import function, graph

BF16_CPU = Hardware(cpu_has_bf16=True)
TEXT = "x = Placeholder()\nallow1 = MatMul(x, x)\nother1 = Sin(allow1)"
FUNCTION = "function f(x: float32) -> (y: float32)\na = MatMul(x, x)\nreturn y = a:product:0"


def rewrite(proto, path, **settings):
    config = amp_tf.AmpConfig(precision="bfloat16", log_path=str(path), **settings)
    return amp_tf.rewrite(proto, config, hardware=BF16_CPU)


def files(folder):
    """The files by what stands before the number and the time."""
    found = {}
    for path in folder.iterdir():
        name, _, _ = path.name.rsplit("_", 2)
        found[name + "".join(path.suffixes)] = path
    return found


def test_each_rewrite_has_files_of_its_own_whichever_way_its_graph_came(tmp_path):
    config = amp_tf.AmpConfig(precision="bfloat16", log_path=str(tmp_path))
    rewrite(graph(TEXT, function(FUNCTION)), tmp_path)
    pipeline.rewrite_program(function(FUNCTION), [], config, BF16_CPU, None)
    pipeline.rewrite_serialized(graph(TEXT).SerializeToString(), config, hardware=BF16_CPU)
    functions = []
    for path in tmp_path.glob("reasons_*.txt"):
        lines = path.read_text().splitlines()
        functions.append(sorted({line.split("\t")[2] for line in lines}))
    assert sorted(functions) == [[""], ["", "f"], ["f"]]
    assert len(list(tmp_path.glob("graphdef_preop_*.pb"))) == 3


def test_a_rewrite_leaves_the_graphs_the_lists_and_the_reasons_in_a_folder_that_it_makes(tmp_path):
    before = graph(TEXT)
    result = rewrite(before, tmp_path / "new" / "folder")
    found = files(tmp_path / "new" / "folder")
    assert set(found) == {
        "graphdef_preop.pb",
        "graphdef_preop.pb.txt",
        "graphdef_AutoMixedPrecision.pb",
        "graphdef_AutoMixedPrecision.pb.txt",
        "paintbuckets_AutoMixedPrecision.txt",
        "reasons_AutoMixedPrecision.txt",
    }
    for tag, proto in (("preop", before), ("AutoMixedPrecision", result.graph)):
        serialized = found[f"graphdef_{tag}.pb"].read_bytes()
        assert type(proto).FromString(serialized) == proto
        text = found[f"graphdef_{tag}.pb.txt"].read_text()
        assert text_format.Parse(text, type(proto)()) == proto


def test_the_reasons_have_a_line_for_each_node(tmp_path):
    rewrite(graph(TEXT, function(FUNCTION)), tmp_path)
    assert files(tmp_path)["reasons_AutoMixedPrecision.txt"].read_text().splitlines() == [
        "float32\tPlaceholder\t\tx\tits op is on no list",
        "bfloat16\tMatMul\t\tallow1\tits op is on the allow list",
        "float32\tSin\t\tother1\tits op is on no list",
        "float32\t_Arg\tf\tx\tit is an input or an output of the graph, whose type must not change",
        "float32\t_Retval\tf\tf/y\tit is an input or an output of the graph, whose type must not "
        "change",
        "bfloat16\tMatMul\tf\ta\tits op is on the allow list",
    ]


def test_a_broken_graph_is_logged_with_what_is_wrong(tmp_path):
    broken = graph("r = Relu(x)")
    with pytest.raises(GraphError):
        rewrite(broken, tmp_path)
    found = files(tmp_path)
    assert set(found) == {
        "graphdef_preop.pb",
        "graphdef_preop.pb.txt",
        "paintbuckets_AutoMixedPrecision.txt",
        "failure_AutoMixedPrecision.txt",
    }
    assert type(broken).FromString(found["graphdef_preop.pb"].read_bytes()) == broken
    assert (
        found["failure_AutoMixedPrecision.txt"]
        .read_text()
        .startswith("GraphError: node 'r': input 0 is 'x'")
    )


def test_a_rewrite_that_fails_its_verification_is_logged_so_that_it_can_be_reported(
    tmp_path, monkeypatch
):
    spoilt = graph("x = Placeholder()\nm = MatMul(x, x)")
    monkeypatch.setattr(pipeline.editor, "apply_to_graph", lambda *arguments: spoilt)
    with pytest.raises(RewriteError):
        rewrite(graph(TEXT), tmp_path)
    found = files(tmp_path)
    assert "MatMul" in found["graphdef_preop.pb.txt"].read_text()
    assert "did not pass verification" in found["failure_AutoMixedPrecision.txt"].read_text()


def test_the_lists_are_those_after_the_users_changes(tmp_path):
    rewrite(graph(TEXT), tmp_path, allow_add=("Cumsum",))
    text = files(tmp_path)["paintbuckets_AutoMixedPrecision.txt"].read_text()
    allow, infer, deny, clear = (part.split("\n") for part in text.split("\n\n"))
    assert allow[0] == "AllowList:"
    assert infer[0] == "InferList:"
    assert deny[0] == "DenyList:"
    assert clear[0] == "ClearList:"
    assert {"Cumsum", "MatMul"} <= set(allow)
    assert "Exp" in deny


def test_without_a_target_the_lists_file_says_why(tmp_path):
    amp_tf.rewrite(graph(TEXT), amp_tf.AmpConfig(log_path=str(tmp_path)), hardware=Hardware())
    text = files(tmp_path)["paintbuckets_AutoMixedPrecision.txt"].read_text()
    assert text == (
        "nothing is converted: this CPU has neither avx512_bf16 nor amx_bf16 and TensorFlow sees "
        "no GPU\n"
    )


def test_processes_that_begin_together_do_not_overwrite_one_anothers_files(tmp_path, monkeypatch):
    monkeypatch.setattr(recording.time, "time_ns", lambda: 0)
    for process in (1, 2):
        monkeypatch.setattr(recording, "_numbers", itertools.count())
        monkeypatch.setattr(recording.os, "getpid", lambda process=process: process)
        rewrite(graph(TEXT), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * 6


def test_a_folder_that_cannot_be_written_is_one_warning_and_the_rewrite_goes_on(tmp_path, caplog):
    recording._warn_once.cache_clear()
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for _ in range(2):
        assert rewrite(graph(TEXT), blocked / "logs").changed
    (record,) = caplog.records
    assert record.getMessage() == (
        "amp_tf: TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH: cannot write to "
        f"{str(blocked / 'logs')!r} (Not a directory). "
        "Rewrites go on without log files; name a folder that can be written."
    )


@pytest.mark.parametrize("most_bytes", [0, 10, 200])
def test_a_disk_that_is_full_holds_whole_files_or_none(most_bytes, tmp_path, caplog):
    """The limit stands for the disk: a write beyond it is short, and the next one fails."""
    recording._warn_once.cache_clear()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        result = rewrite(graph(TEXT), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result.changed
    assert "cannot write" in caplog.text
    for file in tmp_path.iterdir():
        assert file.stat().st_size, file.name
        assert file.suffix != ".tmp", file.name
