"""Compares a step in float32 with the same step as amp_tf rewrites it, and finds where 16 bit goes wrong.

The step is traced (``steps``) and flattened (``flattening``). Versions of it run one after another on the same batches
and variables (``joining``); their outputs are measured against float32's and judged (``work``,
``verdicts``). Where something is wrong, remedies are tried (``findings``). For single nodes, float32 and 16 bit run in
one graph, in which reductions compare them (``nodes``).

``amp-tf compare -- python train.py`` starts the program with amp_tf off and with ``start`` in every Python below it.
The first training step (``fit`` and ``train_on_batch`` of Keras and tf_keras, a ``tf.function`` that computes
gradients, a run of a TF1 session) is compared in that process, on the program's own batches, so model, data, seeds and
variables are the program's own and the same in both precisions (``functions``, ``sessions``). The result is written to
a folder of the command's (``training``), which prints it.

Then the program ends, as by ``sys.exit``: nobody who asks where it goes wrong wants hours of training after the answer,
or checkpoints and logs that overwrite earlier ones. If the comparison fails, nothing has changed: the program gets back
the batches that were taken and goes on, with one warning.
"""
