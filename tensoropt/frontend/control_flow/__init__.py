"""Loops and custom gradients become operators with a body of operators."""
