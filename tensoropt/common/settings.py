"""Settings that several packages read."""

LAG = 32
"""The most operators of the backward pass that run while a gradient's collective is under way.

With 4 a Transformer on two ranks took a fifth longer than unordered, with 32 a twentieth to an eighth longer; peaks were
equal.
"""
