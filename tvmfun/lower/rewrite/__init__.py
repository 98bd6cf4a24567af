"""Rewriting: passes from Program to Program that depend on the target or may change how results round.

Tracing never makes them.
"""
