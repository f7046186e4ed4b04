"""Functions of TensorFlow's library whose answer is overwritten, in this process, with that of
another kind of CPU.

TensorFlow asks a few exported functions what the CPU can do, and decides by their answers. Their
first bytes are replaced by machine code that returns another answer. Only the standard library is
imported: this runs while TensorFlow is loaded.
"""

import contextlib
import ctypes
import functools
import mmap
import platform

ONEDNN_HAS_KERNELS = "_ZN10tensorflow36IsDataTypeSupportedByOneDNNOnThisCPUERKNS_8DataTypeE"
ONEDNN_IS_ON = "_ZN10tensorflow12IsMklEnabledEv"
HAS_FEATURE = "_ZN3tsl4port14TestCPUFeatureENS0_10CPUFeatureE"

_READ = mmap.PROT_READ
_WRITE = mmap.PROT_WRITE
_EXECUTE = mmap.PROT_EXEC
# "Return true" and "return false".
_CODE = {
    "x86_64": {True: bytes.fromhex("b801000000c3"), False: bytes.fromhex("31c0c3")},
    "aarch64": {True: bytes.fromhex("20008052c0035fd6"), False: bytes.fromhex("00008052c0035fd6")},
}


class OverwritingError(Exception):
    """A function cannot be overwritten here; the text says which, and why."""


def answer(name, value):
    """Machine code of a function that returns ``value``; ``name`` is the function's, for the
    error.
    """
    code = _CODE.get(platform.machine())
    if code is None:
        raise OverwritingError(
            f"{name} cannot be overwritten: no machine code is known for {platform.machine()}"
        )
    return code[value]


def bits(mask):
    """Machine code (x86-64) of a function of one integer that returns whether that bit is in
    ``mask``.
    """
    # mov eax, edi
    # mov rdx, mask
    # bt rdx, rax
    # setc al
    # movzx eax, al
    # ret
    return (
        bytes.fromhex("89f848ba")
        + mask.to_bytes(8, "little")
        + bytes.fromhex("480fa3c20f92c00fb6c0c3")
    )


@functools.cache
def _library(path):
    return ctypes.CDLL(path)


def library(tensorflow):
    """The library with these functions, of the TensorFlow in a folder."""
    return _library(str(tensorflow / "libtensorflow_framework.so.2"))


def function(of, name):
    """The function by its name in the library; an OverwritingError if there is none."""
    try:
        found = getattr(of, name)
    except AttributeError:
        raise OverwritingError(f"this TensorFlow exports no {name}") from None
    found.restype = ctypes.c_bool
    return found


def overwrite(of, name, code):
    """Puts machine code in the place of a function's first bytes, and returns these; or an
    OverwritingError.
    """
    address = ctypes.cast(function(of, name), ctypes.c_void_p).value
    assert address is not None
    libc = ctypes.CDLL(None, use_errno=True)
    start = address - address % mmap.PAGESIZE
    length = ctypes.c_size_t(address + len(code) - start)
    if libc.mprotect(ctypes.c_void_p(start), length, _READ | _WRITE | _EXECUTE):
        raise OverwritingError(
            f"{name} cannot be overwritten: mprotect ended with errno {ctypes.get_errno()}"
        )
    before = ctypes.string_at(address, len(code))
    ctypes.memmove(address, code, len(code))
    libc.mprotect(ctypes.c_void_p(start), length, _READ | _EXECUTE)
    if platform.machine() == "aarch64":  # whose cache of instructions does not see what is written
        ctypes.CDLL("libgcc_s.so.1").__clear_cache(
            ctypes.c_void_p(address), ctypes.c_void_p(address + len(code))
        )
    return before


@contextlib.contextmanager
def answering(of, name, value):
    """A function returns ``value``, whatever its arguments, and afterwards what it did before."""
    before = overwrite(of, name, answer(name, value))
    try:
        yield
    finally:
        overwrite(of, name, before)


def hide_features(of, hidden):
    """The CPU lacks some features of tsl/platform/cpu_info.h, in this process and from now on.

    x86-64 alone.
    """
    has_feature = function(of, HAS_FEATURE)
    left = sum(
        1 << feature for feature in range(64) if feature not in hidden and has_feature(feature)
    )
    overwrite(of, HAS_FEATURE, bits(left))
