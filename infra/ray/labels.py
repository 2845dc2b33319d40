"""Names that tell a Ray node's agent, and an experiment's driver which agent runs it."""

from regrow.infra.state.agents import AGENT

__all__ = ["AGENT", "AGENT_LABEL", "ENDS_LABEL", "MARKET_LABEL", "NODE"]
NODE = "REGROW_NODE"
"""Variable with the id of the agent whose Ray node a process belongs to."""
AGENT_LABEL = "regrow-agent"
"""Label with the id of the agent that a Ray node belongs to."""
ENDS_LABEL = "regrow-ends"
"""Label with the time at which a node's machine ends, seconds since the epoch."""
MARKET_LABEL = "ray.io/market-type"
"""Ray's label for the kind of a node's machine: "spot" or "on-demand"."""
