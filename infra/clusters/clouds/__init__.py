"""Fleets of agents on AWS, Google Cloud and Azure."""
