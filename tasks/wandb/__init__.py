"""What a program that logs to W&B sees in a trial: its run, config, rows and files. Only the standard library is imported.

Nothing here sends anything. `standin/wandb.py` is the module that the program imports.
"""
