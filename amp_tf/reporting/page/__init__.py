"""Reports and comparisons as an HTML file that needs no network."""
