"""What every package uses: errors, files, units of memory, settings, and the import of TensorFlow."""
