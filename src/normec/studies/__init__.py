"""Studies: many runs, from a grid, a comparison or the paper."""
