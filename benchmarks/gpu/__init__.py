"""What mixed precision makes of steps for GPUs, seen on a machine that has none; and timed on one
that has.

    python -m benchmarks.gpu compile --targets h100,a100,v100 --models all   XLA's compiler for GPUs
    python -m benchmarks.gpu grappler                                        TensorFlow's graph optimizers for GPUs
    python -m benchmarks.gpu judge                                           both on tiny forms, with limits
    python -m benchmarks.gpu run exported                                    times what was exported; JAX alone

XLA's compiler is told what the GPU is and needs none, TensorFlow's optimizers take their knowledge
of devices from a *cluster*, which may be one that is only described. So both run here as for GPUs
of a kind, with amp_tf at work as in a program, and what comes out tells what would have run:
products by type and layout, transposes, casts, bytes, memory. It tells no times. The figures are in
``README.md`` here.
"""
