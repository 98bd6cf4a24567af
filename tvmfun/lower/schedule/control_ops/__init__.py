"""Schedules for control ops: loops and branches as one function around the kernels of their Programs."""
