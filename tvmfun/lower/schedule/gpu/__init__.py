"""Schedules for GPUs: rules in an order, one file per family of kernels."""
