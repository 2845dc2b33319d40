"""Agents on Kubernetes: the manifests, and kubectl."""
