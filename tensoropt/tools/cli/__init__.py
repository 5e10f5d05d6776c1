"""Implement the command line ``tensoropt``, one module for each command."""
