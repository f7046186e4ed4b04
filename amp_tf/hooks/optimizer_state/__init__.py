"""``AMP_TF_OPTIMIZER_STATE=bfloat16``: an optimizer's moments are kept in bfloat16, and everything else in float32."""
