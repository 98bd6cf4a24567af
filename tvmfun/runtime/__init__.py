"""Devices, memory, and calls of compiled modules."""
