"""The command line. `main` is the `regrow` command; the commands are in the modules beside this one.

Exit codes: 0 done, 1 the experiment failed or `verify` found a difference, 2 the input or the environment is wrong,
3 the experiment was interrupted or stopped and can go on, 4 the durable state is damaged.
"""

from regrow.cli.app import main

__all__ = ["main"]
