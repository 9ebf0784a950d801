"""Probes: measures of the mechanism. Text side on any back end, state side on any model that exposes its memory."""
