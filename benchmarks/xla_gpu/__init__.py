"""Evidence from a GPU machine that has JAX but no TensorFlow: compiled training steps travel as StableHLO text.

On any machine with TensorFlow 2.21 and amp_tf, no GPU needed::

    python -m benchmarks.xla_gpu.export --models resnet50,ssd,ncf,bert,gnmt,convnet --size real --all-batches \\
        --out exported

On the GPU machine, with ``pip install "jax[cuda12]"``, the folder ``exported`` and this folder's ``run.py`` and
``stablehlo.py``::

    python run.py exported --json result.json > table.md

Both work on a CPU with ``--size small`` or ``--size tiny`` in the first command, and ``JAX_PLATFORMS=cpu`` for the
second.
"""
