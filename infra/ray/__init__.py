"""All that uses Ray: cluster, nodes, workers, attempts, notices. No trial is judged here."""
