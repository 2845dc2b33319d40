"""The station: long-running services of a state root, and idle drivers that wait for experiments to
run.

`record` finds the station of a state root, `supervisor` starts and restarts its `parts`, `worker`
runs the flow runs that Prefect has scheduled, `driver` is the process of one session, `orders` is
the protocol that gives a driver its session, `client` is the station side of `regrow run`;
`triggers` turns external events into flow runs. The parts of regrow that run without a station
import nothing from here.
"""
