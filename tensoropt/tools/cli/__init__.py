"""Implement the command line ``tensoropt``, one module for each command, in a package with those that do alike."""
