"""What works on files: SavedModels, graphs, explanations. The results need no amp_tf to run."""
