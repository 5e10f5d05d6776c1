"""Communicators that run collectives between real devices."""
