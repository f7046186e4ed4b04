"""``amp-tf compare -- python train.py``: the first training step of a program is compared, and the program ends.

The command starts the program with amp_tf off and with :mod:`start` in every Python below it. The first training step
(``fit`` and ``train_on_batch`` of Keras and tf_keras, a ``tf.function`` that computes gradients) is compared in that
process, on the program's own batches, so model, data, seeds and variables are the program's own and the same in both
precisions. The result is written to a folder of the command's (:mod:`request`), which prints it.

Then the program ends, as by ``sys.exit``: nobody who asks where it goes wrong wants hours of training after the answer,
or checkpoints and logs that overwrite earlier ones. If the comparison fails, nothing has changed: the program gets back
the batches that were taken and goes on, with one warning.
"""
