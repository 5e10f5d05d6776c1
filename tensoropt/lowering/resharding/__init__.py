"""Emit reshardings into a rank's graph: collectives by callback or by operator, and local steps."""
