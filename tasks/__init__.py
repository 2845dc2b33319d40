"""Running one trial: the Prefect task, the `Trial` object that user code sees, reports, checkpoints
and outcomes.

External services are reached through the protocols and messages in `ports/`. No decision is made
here, and no module here imports ray.
"""
