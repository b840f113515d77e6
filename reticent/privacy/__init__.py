"""The mechanism at run time: clipping, secure random bits, the integer grid, noise."""
