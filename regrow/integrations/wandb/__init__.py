"""The W&B interface for a program in a trial: its run, config, rows and files. Only imports the
standard library.

Nothing here sends anything. `standin/wandb.py` is the module that the program imports.
"""

from pathlib import Path

STAND_IN = Path(__file__).parent / "standin"
"""Folder that contains only a module `wandb`; on the import path of such programs only."""
