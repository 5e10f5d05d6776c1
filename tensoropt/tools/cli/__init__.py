"""The command line ``tensoropt``, one module a command."""
