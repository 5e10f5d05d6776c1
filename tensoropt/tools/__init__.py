"""Provide the command line and its tools: record a model by name, search, calibrate, check a plan, draw a timeline."""
