"""Communicators that carry out rescheduling steps between real devices."""
