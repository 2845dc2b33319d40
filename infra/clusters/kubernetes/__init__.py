"""Clusters on Kubernetes by the KubeRay operator: what it is told, and what runs in its pods. No other engine is known here."""
