"""Ranks, collectives, execution, checkpoints, and what happens when a rank fails."""
