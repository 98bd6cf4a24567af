"""Clusters of points."""

from tvmfun.scipy.cluster import vq

__all__ = ["vq"]
