"""Clusters of machines: what a cluster file says, and the engines that bring up what it describes."""
