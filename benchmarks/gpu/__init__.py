"""Steps for GPUs: compiled on a machine that has none, and timed on one that has.

    python -m benchmarks.gpu compile --targets h100,a100 --models all    XLA's compiler for GPUs
    python -m benchmarks.gpu export --out exported                       the steps alone
    python -m benchmarks.gpu run exported                                times them; needs JAX alone
    python -m benchmarks.gpu session found       all that a GPU is needed for, with TensorFlow

XLA's compiler is told what the GPU is and needs none. So it compiles a step, with amp_tf at work as
in a program, and its result shows what would have run: products by type, casts, bytes, memory. It
shows no times. The figures are in ``README.md`` here.
"""
