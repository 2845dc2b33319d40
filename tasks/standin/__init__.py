"""Modules that stand in for other tools in the programs of their own files; this folder is on the path of such trials only."""
