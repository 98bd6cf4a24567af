"""Manifests: trees, leaves and versions as JSON, for exported libraries and for saved Programs."""
