"""Agents: processes on any machines that see the state, of which one leads the experiment."""
