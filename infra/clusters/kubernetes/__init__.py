"""Clusters on Kubernetes by the KubeRay operator: the manifests, and what runs in the pods."""
