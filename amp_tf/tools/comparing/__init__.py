"""Compares a step in float32 with the same step as amp_tf rewrites it.

It also finds where 16 bit goes wrong.

The step is traced (``steps``) and flattened (``flattening``). Versions of it run one after another
on the same batches and variables (``joining``); their outputs are measured against float32's and
judged (``work``, ``verdicts``). If something is wrong, remedies are tried (``findings``). For
single nodes, float32 and 16 bit run in one graph, in which reductions compare them (``nodes``).

``amp-tf compare -- python train.py`` starts the program with amp_tf off. The first training step is
compared in that process (``training``), on the program's own batches, so model, data, seeds and
variables are the program's own and the same in both precisions. The command prints the result. If a
program has trained nothing when it ends, its forward calls are compared.

After that the program ends, as by ``sys.exit``, because nobody who asks where it goes wrong wants
hours of training after the answer, or checkpoints and logs that overwrite earlier ones. It also
ends if the comparison fails.
"""
