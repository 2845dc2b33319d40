"""The launcher file's parts for each cloud, and what is created in an account for a cluster."""
