"""Lowering: a Program becomes machine code, in the stages that :mod:`tvmfun.lower.pipeline` lists.

The stages are `rewrite`, `fusion`, `schedule` and `codegen`; `tir` is shared by them, `tuning` searches for schedules.
"""
