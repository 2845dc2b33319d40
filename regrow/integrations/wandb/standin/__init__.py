"""Modules that replace other tools in the programs of those tools' files; this folder is on the
path of such trials only.
"""
