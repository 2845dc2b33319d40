"""The station: the services of a state root that stay up, and the drivers that wait there for experiments to run.

`record` finds the station of a state root, `supervisor` starts its `parts` and starts them again, `worker` runs what Prefect
says is due, `driver` is the process of one session, `orders` how it is told what to run, `client` what `regrow run` does there;
`triggers` makes flow runs of what happens elsewhere. Nothing here is imported by the parts of regrow that run without a station.
"""
