"""``AMP_TF_WATCHDOG=1``: a step of ``fit`` that goes wrong in 16 bit is done again, with the layer at fault in float32.

A step, one batch at a time (:mod:`watched`)::

    the step, guarded: with gradients that are not finite, or a loss above the limit, no trained variable is written
    fine                         go on; the loss moves the limit
    the loss scale was too high  go on as without the watchdog: loss scaling has lowered it, and drops the batch
    the batch in float32, from the same variables, held so that none is written:
        not finite there too     bad data: said with the batch's number; what else the step wrote is put back
        no smaller loss there    a hard batch: the step is made, without the limit
        fine there               precision: the layer at fault joins the lock (:mod:`reverts`), the step is traced again
                                 and made again with the same batch, from the same state; it counts once

The flags are the loss, which a forward pass that is not finite makes so or whose gradients it does, and whether the
gradients are finite, which loss scaling asks in any case: reductions over every tensor would cost a pass over each of
them in every step, and find only what neither loss nor gradients see. Where a value first is not finite, and in
which layer, is found on the batch at fault by :mod:`amp_tf.comparing`.

A step is watched only where it is known how to do it again exactly (:func:`fit.why_not`, :meth:`Watched.why_not`).
Elsewhere the program trains as without the watchdog, with one message that says why at its first step.
"""
