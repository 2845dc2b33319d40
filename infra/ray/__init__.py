"""All that speaks to Ray: the cluster, its nodes, workers, attempts on them, notices. No trial is chosen or judged here."""
