"""Descriptions of hardware, and the times of collectives and operators on it, measured or modelled."""
