"""Evidence from a GPU machine that has JAX but no TensorFlow: compiled training steps travel as StableHLO text.

``python -m benchmarks.xla_gpu.export`` writes them on any machine with TensorFlow 2.21; ``python run.py`` compiles and
times them on a machine that has JAX alone.
"""
