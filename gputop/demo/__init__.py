"""`gputop demo`: real processes and real disturbances, a simulated GPU that consumes their batches.

    gputop demo ── stage (holds the GPU's memory, starts and ends everybody else)
                     ├─ train.py, one per rank ── pt_data_worker × n
                     └─ what disturbs them

Each dies with its parent (`processes`), the GPU's memory and the samples' file have no name, so nothing is left behind whatever
happens.
"""
