"""Backbones, one decoder for all of them, training, and the zoo of trained micro models."""
