"""Schedules for CPUs: the stages of a kernel, the groups that share loops, and a rule for the loops of each stage."""
