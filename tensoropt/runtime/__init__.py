"""Ranks, collectives, execution, checkpoints and the handling of failures."""
