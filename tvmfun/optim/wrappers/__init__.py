"""Transformations that decide when another one is applied, or to what."""
