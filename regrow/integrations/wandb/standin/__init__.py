"""Modules that replace other tools in the programs of their files; on those trials' path only."""
