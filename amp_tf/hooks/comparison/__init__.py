"""``amp-tf compare -- python train.py``: the first training step of a program is compared, and the program ends.

The command starts the program with amp_tf off and :mod:`start` in every Python below it. The first step that trains
(Keras' and tf_keras' ``fit`` and ``train_on_batch``, a ``tf.function`` that asks for gradients) is compared in the
process itself, on its own batches; so model, data, seeds and variables are the program's own, and the same in both
precisions. What was found lies in a folder of the command's (:mod:`request`), which prints it.

Then the program ends, as by ``sys.exit``: who asks where it goes wrong does not want hours of training after the
answer, nor checkpoints and logs of it over those that are there. Where the comparison fails, nothing was changed: the
program gets back the batches that were taken, goes on as it was, and one warning says so.
"""
