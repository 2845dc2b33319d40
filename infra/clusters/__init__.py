"""Clusters of machines: the cluster file, and the engines that start what it describes."""
