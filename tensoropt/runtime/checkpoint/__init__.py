"""Checkpoints in TensorFlow's own format: saved in parts by all ranks, loaded under any plan, read by plain TensorFlow."""

from .loading import load_checkpoint, read_metadata, restore
from .metadata import Metadata, Saved
from .objects import Objects
from .saving import save
from .variable import entry_name

__all__ = ["Metadata", "Objects", "Saved", "entry_name", "load_checkpoint", "read_metadata", "restore", "save"]
