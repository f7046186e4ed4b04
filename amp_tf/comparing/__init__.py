"""Where a model goes wrong in 16 bit: the same step in float32 and as amp_tf rewrites it.

The step is traced (``steps``) and made flat (``flattening``); forms of it run one after the other on the same batches
and variables (``forms``), and what they give out is measured against float32's (``running``, ``instruments``) and
judged (``verdicts``). Where something is wrong, what would mend it is tried (``findings``). For single nodes float32
and 16 bit run in one graph (``joining``), in which reductions compare them (``probes``).
"""
