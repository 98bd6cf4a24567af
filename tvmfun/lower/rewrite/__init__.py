"""Rewriting: passes from Program to Program that only lowering may make, because they change how results round."""
