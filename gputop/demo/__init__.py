"""`gputop demo`: real processes and real disturbances, and a simulated GPU that consumes their batches.

    gputop demo ── stage (holds the GPU's memory, starts and ends the others)
                     ├─ train.py, one per rank ── pt_data_worker × n
                     └─ the disturbing processes

Trainers call a simulated CUDA driver (gputop/data/cuda), which gputop's uprobes find as they find libcuda. The stage writes into the GPU's
memory which act is played; the guide on the screen (`gputop.commands.guide`) puts it into words.

Each process dies with its parent (`work.die_with_parent`), and the GPU's memory and the samples' file have no name, so nothing is left
behind however the demo ends.
"""
