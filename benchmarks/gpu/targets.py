"""The GPUs that are compiled for: what XLA must know of them, and what they can do at most."""

from __future__ import annotations

import dataclasses

_CONFIG = """
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{title}"
gpu_device_info {{
  cuda_compute_capability {{ major: {capability} feature_extension: {extension} }}
  core_count: {cores} fpus_per_core: {fpus} clock_rate_ghz: {clock_ghz}
  memory_bandwidth: {bandwidth} device_memory_size: {memory} l2_cache_size: {cache}
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {shared_by_block}
  shared_memory_per_core: {shared}
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
}}
"""


@dataclasses.dataclass(frozen=True)
class Target:
    """A GPU as XLA's compiler is told of it. The figures are those of XLA's own descriptions of
    these cards.

    Attributes:
        title: what the card is called.
        capability: the compute capability, without a minor number that is not 0.
        extension: what its kernels may use beyond that, in XLA's words.
        cores: streaming multiprocessors.
        fpus: float32 units of each.
        clock_ghz: their clock.
        bandwidth: of memory, bytes a second.
        memory: bytes.
        cache: bytes of the second level.
        shared_by_block: bytes of shared memory that a block can ask for.
        shared: bytes of shared memory of a multiprocessor.
        flops_16: products in 16 bit a second, dense, by tensor cores; from NVIDIA's data sheets, as
            the next one.
        flops_32: products in float32 a second: in TF32 where the card has it, as TensorFlow has it
            on.
        has_bfloat16: whether its tensor cores take bfloat16.
    """

    title: str
    capability: int
    extension: str
    cores: int
    fpus: int
    clock_ghz: float
    bandwidth: float
    memory: int
    cache: int
    shared_by_block: int
    shared: int
    flops_16: float
    flops_32: float
    has_bfloat16: bool = True

    def config(self) -> str:
        """The text of a ``GpuTargetConfigProto``, with cuDNN 9.10 and CUDA 12.9."""
        values = dataclasses.asdict(self)
        return _CONFIG.format(**values | {"bandwidth": int(self.bandwidth)})


TARGETS = {
    "h100": Target(
        title="NVIDIA H100 80GB HBM3",
        capability=9,
        extension="ACCELERATED_FEATURES",
        cores=132,
        fpus=128,
        clock_ghz=1.98,
        bandwidth=3.35232e12,
        memory=84_942_979_072,
        cache=52_428_800,
        shared_by_block=232_448,
        shared=233_472,
        flops_16=989e12,
        flops_32=494e12,
    ),
    "a100": Target(
        title="NVIDIA A100-SXM4-80GB",
        capability=8,
        extension="NONE",
        cores=108,
        fpus=64,
        clock_ghz=1.41,
        bandwidth=2.03904e12,
        memory=85_100_068_864,
        cache=41_943_040,
        shared_by_block=166_912,
        shared=167_936,
        flops_16=312e12,
        flops_32=156e12,
    ),
    "v100": Target(
        title="Tesla V100-SXM2-16GB",
        capability=7,
        extension="NONE",
        cores=80,
        fpus=64,
        clock_ghz=1.53,
        bandwidth=8.98048e11,
        memory=16_935_682_048,
        cache=6_291_456,
        shared_by_block=98_304,
        shared=98_304,
        flops_16=125e12,
        flops_32=15.7e12,
        has_bfloat16=False,
    ),
}
