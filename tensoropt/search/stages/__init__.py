"""Stages of a model: where to cut it, on which devices, and what each stage takes in memory and time."""
