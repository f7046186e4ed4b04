"""Converts and explains files: SavedModels and graphs. The results run without amp_tf."""
