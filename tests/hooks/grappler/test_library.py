"""The shim, called as TensorFlow calls it: through the structs of grappler.h, without TensorFlow."""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_tf.hooks.grappler import library
from amp_tf.hooks.grappler.library import Shim


class Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("data_deallocator", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)),
    ]


OPTIMIZE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.POINTER(Buffer), ctypes.c_void_p, ctypes.POINTER(Buffer), ctypes.c_void_p
)


class Configs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("ext", ctypes.c_void_p), ("toggles", ctypes.c_int * 19)]


class Optimizer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("create_func", ctypes.c_void_p),
        ("optimize_func", OPTIMIZE),
        ("destroy_func", ctypes.c_void_p),
    ]


class Params(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("version", ctypes.c_int32 * 3),
        ("device_type", ctypes.c_char_p),
        ("configs", ctypes.POINTER(Configs)),
        ("optimizer", ctypes.POINTER(Optimizer)),
    ]


class Registered:
    """What TensorFlow holds after it has loaded the shim."""

    def __init__(self, path: Path) -> None:
        self.configs, self.optimizer = Configs(), Optimizer()
        self.params = Params(configs=ctypes.pointer(self.configs), optimizer=ctypes.pointer(self.optimizer))
        ctypes.CDLL(str(path)).TF_InitGraph(ctypes.byref(self.params), None)

    def optimize(self, graph: bytes) -> bytes:
        kept = ctypes.create_string_buffer(graph, len(graph))
        source, result = Buffer(ctypes.addressof(kept), len(graph)), Buffer()
        self.optimizer.optimize_func(None, source, None, result, None)
        new = ctypes.string_at(result.data, result.length)
        if result.data_deallocator:
            result.data_deallocator(result.data, result.length)
        return new


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shim]:
    """A copy of its own, so that nothing of another test is in it."""
    shutil.copy(library.FOLDER / "amp_tf_cpu.so", tmp_path)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    shim = Shim("CPU")
    yield shim
    shim.clear_callback()


@pytest.mark.parametrize("device_type", library.DEVICE_TYPES)
def test_registration_fills_what_tensorflow_checks(device_type: str, tmp_path: Path) -> None:
    copy = Path(shutil.copy(library.FOLDER / f"amp_tf_{device_type.lower()}.so", tmp_path))
    registered = Registered(copy)
    assert registered.params.device_type == device_type.encode()
    assert registered.params.struct_size == ctypes.sizeof(Params)
    assert registered.optimizer.struct_size == ctypes.sizeof(Optimizer)
    # TF_OFFSET_OF_END of the last toggle, without the padding behind it
    assert registered.configs.struct_size == Configs.toggles.offset + 19 * ctypes.sizeof(ctypes.c_int)
    assert list(registered.configs.toggles) == [0] * 19


def test_shim_knows_that_it_is_registered(shim: Shim) -> None:
    assert not shim.is_registered
    Registered(shim.path)
    assert shim.is_registered


def test_graph_is_unchanged_without_callback(shim: Shim) -> None:
    assert Registered(shim.path).optimize(b"graph") == b"graph"


def test_callback_gets_the_graph_and_gives_the_new_one(shim: Shim) -> None:
    seen = []

    def callback(data: int, length: int, item: int, output: int) -> None:
        seen.append(ctypes.string_at(data, length))
        shim.emit(output, b"new " + seen[-1])

    registered = Registered(shim.path)
    shim.set_callback(callback)
    assert registered.optimize(b"gra\0ph") == b"new gra\0ph"
    assert seen == [b"gra\0ph"]


def test_graph_is_unchanged_when_the_callback_gives_nothing_or_is_removed(shim: Shim) -> None:
    registered = Registered(shim.path)
    shim.set_callback(lambda *_: None)
    assert registered.optimize(b"graph") == b"graph"
    shim.set_callback(lambda data, length, item, output: shim.emit(output, b"new"))
    shim.clear_callback()
    assert registered.optimize(b"graph") == b"graph"


def test_last_graph_that_is_emitted_counts(shim: Shim) -> None:
    def callback(data: int, length: int, item: int, output: int) -> None:
        shim.emit(output, b"first")
        shim.emit(output, b"second")

    registered = Registered(shim.path)
    shim.set_callback(callback)
    assert registered.optimize(b"graph") == b"second"


def test_graph_is_unchanged_in_a_forked_child(shim: Shim) -> None:
    registered = Registered(shim.path)
    shim.set_callback(lambda data, length, item, output: shim.emit(output, b"new"))
    child = os.fork()
    if child == 0:
        os._exit(0 if registered.optimize(b"graph") == b"graph" and shim.clear_callback(60_000) == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert registered.optimize(b"graph") == b"new"


def test_removal_waits_for_the_call_that_is_under_way(shim: Shim) -> None:
    inside, log = threading.Event(), []

    def callback(data: int, length: int, item: int, output: int) -> None:
        inside.set()
        time.sleep(0.2)
        log.append("callback ended")

    registered = Registered(shim.path)
    shim.set_callback(callback)
    thread = threading.Thread(target=registered.optimize, args=(b"graph",))
    thread.start()
    assert inside.wait(10)
    assert shim.clear_callback(wait_ms=0) == 1
    assert shim.clear_callback(wait_ms=10_000) == 0
    log.append("removed")
    thread.join()
    assert log == ["callback ended", "removed"]
