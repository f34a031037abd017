"""Foreign bytes of every kind but recordings (`tests.recording.fuzz`) through the code that reads them: each input is made from a number.

A file a room; `kinds.KINDS` lists what there is. `make fuzz ARGS="100000"` reads so many inputs, recordings among them.
"""
