"""Checkpoints: manifests, saving and restoring through a `Store`, and the thread that saves."""
