"""Stacks of processes that are stalled: taken from outside, grouped, and shown with what they wait for.

`capture` reads Python stacks (py-spy) and kernel stacks side by side, `group` folds equal ones, `sampling` and `offcpu`
say where time goes over some seconds. Nothing here stops a process for longer than py-spy's own pause, and by default
there is none. A stack that cannot be read is a `gputop.model.frame.Stack` with its reason in ``error``.
"""
