"""Compares a step in float32 with the same step as amp_tf rewrites it, and finds where 16 bit goes wrong.

The step is traced (``steps``) and flattened (``flattening``). Versions of it run one after another on the same batches
and variables (``step_graphs``); their outputs are measured against float32's (``running``, ``instruments``) and judged
(``verdicts``). Where something is wrong, remedies are tried (``findings``). For single nodes, float32 and 16 bit run in
one graph (``joining``), in which reductions compare them (``probes``).
"""
