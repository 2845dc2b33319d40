"""Running one trial: the Prefect task, the Trial that user code sees, reports, checkpoints, outcomes.

What it needs from outside comes through the ports in `ports.py` and `messages.py`; no decision is made here, and no
module here imports ray.
"""
