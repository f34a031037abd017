"""Python and kernel stacks of running processes, taken from outside and grouped.

`capture` takes one set of stacks, `group` folds equal ones, `lines` writes them as text, `sampling` and `on_demand` find where time goes
over some seconds. By default no process is paused; native frames pause one for about 20 ms. A stack that cannot be read is a
`gputop.model.frame.Stack` whose ``error`` has the reason.
"""
