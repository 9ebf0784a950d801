"""Recurrences of fixed-state memories: for each one the definition and the chunked form, with capacity masks."""
