"""Tuning: schedules for kernels found by TVM's meta-schedule rules and by trying, and a database that keeps them.

`space` draws schedules, `worker` verifies and times them in a process of its own, `search` talks to that process,
and `database` keeps what was faster than our rules and says which of it is in use.
"""
