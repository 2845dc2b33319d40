"""Everything that uses Ray: the cluster, its nodes, workers, attempts on them, preemption notices.
No trial is selected or judged here.
"""
