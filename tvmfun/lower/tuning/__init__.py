"""Tuning: a search for faster schedules with TVM's meta-schedule rules, and a database of the results.

`space` draws schedules, `worker` verifies and times them in a separate process, `search` talks to that process, and
`database` keeps schedules that were faster than those of our rules, and selects the ones in use.
"""
