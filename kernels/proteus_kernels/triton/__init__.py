"""Triton kernels of the gated recurrences; they need the extra `gpu` (triton) and nothing imports them without it."""
