"""Frames as columns: codecs 2 and 3 of the format, before zstd.

A block's frames are a table; lists of structs in them are tables below it. Rows are put in order of subject, which is whom they
are about (a pid, a GPU, a thread of a process), so that a counter lies beside its own next reading and only the difference is
kept; bytes of equal weight lie together.

    payload  = of codec 3: name u32, size u32, what a zstd stream gives for the table (``size`` bytes) up to a flush
               of codec 2: name u32, zstd of the table, the reference being the dictionary; read, but no more written
    table    = msgpack [rows, [name of each key field], {field: column}]
    column   = [0, value]                                    the same in all rows
             | [1, absent, unit, bases, steps]               integers, as multiples of ``unit``; codes 1, 2, 8 and 10 are read, but no
             | [2, absent, scale, bases, steps]              floats that are whole numbers over ``scale``              more written
             | [3, absent, doubles]                          other floats
             | [4, words, indices]                           few different values, or numbers
             | [5, values]                                   anything else
             | [6, lengths, table]                           lists of structs; of dicts of counts, lists of (bucket, count)
             | [7, absent, unit, bases, steps]               integers that run on from row to row, whoever they are about
             | [8, absent, unit, lasts, steps]               as 1, told from its end
             | [9, absent, scale, lasts, steps]              as 2, told from its end
             | [10, lengths, table]                          dicts of counts: in each subject's first row all of them, then what has
                                                             changed since its row before; 0 is one that is no more
             | [11, lengths, buckets, growths]               dicts of counts: in each row how many have grown since its subject was
                                                             told of before, which, and by how much; all of it is one that is no more
             | [12, absent, unit, steps]                     integers by their steps alone, a subject's first from where it stood before
             | [13, absent, unit, steps]                     as 12, of the value less another, see below
    absent   = a byte per row, 1 where the value is None; nil where none is
    integers = width u8 (0, 1, 2, 4, 8), then signed little-endian numbers, all first bytes, then all second ones, …

Blocks stand in *runs*. The first of a run builds upon a *reference*, the columns of a second some minutes ago, each other upon the block
before it: ``name`` is the CRC-32 of that table (0 for none). Building upon it means that ``steps`` begin where its counters ended, or
those of earlier blocks of the run where it does not tell of a subject, and that the zstd stream goes on; that of a run begins with the
reference as dictionary. Who wants a block opens its run from the beginning, which is soon done: columns are only decoded when they are
asked for. Behind a run stands a parity, which brings back some damaged stretches of it (see `gputop.recording.parity`).

``bases`` holds each subject's first value (less the reference's last, in code 1), ``lasts`` its last (less the reference's last, in
code 8), ``steps`` a difference per row, 0 at a subject's first where that is told elsewhere. Where a value is absent, the one before
stands, at a subject's beginning its first one (in codes 12 and 13 where it stood). ``lengths`` is a column, in code 11 integers; -1 is
None. A field that is not there has its default in all rows; one that we do not know is not looked at. Codes 5 and 7 keep the order of
the rows, the others that of subjects, by first appearance. A thread whose ``timeslices`` is -1 and whose tid is its process's pid
repeats what the process's own sample says; ``timeslices`` is told less ``vol`` and ``invol``, which run with it; what code 13 is less
stands in `layout.TOLD_LESS`.

What is kept is what no screen, table or verdict shows coarser (`layout.UNITS`): run time and waits to a thousandth of a tick, times of
reading to 10 µs, longest waits to 50 µs and 3 %, PCIe and NVLink to 64 KiB, energy to 0.1 J, power to 0.1 W, GPM's shares to 0.1 %.
Counters lose nothing by it in the long run: only where they stand is rounded down. Threads, who preempted whom and who woke whom stand
in the order of their numbers.
"""
