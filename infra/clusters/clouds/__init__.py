"""What a launcher file has of each cloud, and what is made in an account for a cluster."""
