"""Removing, renaming and copying whole experiments, in all systems that have traces of them."""
