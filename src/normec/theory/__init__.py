"""The theory of Fed-α-NormEC as a working part: bounds, stepsizes, constants and certificates."""
