"""Frames as columns: codec 2 of the format, before zstd.

A block's frames are a table; lists of structs in them are tables below it. Rows are put in order of subject, which is whom they
are about (a pid, a GPU, a thread of a process), so that a counter lies beside its own next reading and only the difference is
kept; bytes of equal weight lie together. Where each subject's counters begin is told as the difference from a *reference*: the
columns of a second some minutes ago, which every block since refers to, so that each can still be read without the others.

    payload  = reference u32 (CRC-32 of the reference's table, 0 for none), zstd of table with that as dictionary
    table    = msgpack [rows, [name of each key field], {field: column}]
    column   = [0, value]                                    the same in all rows
             | [1, absent, unit, bases, steps]               integers, as multiples of ``unit``
             | [2, absent, scale, bases, steps]              floats that are whole numbers over ``scale``
             | [3, absent, doubles]                          other floats
             | [4, words, indices]                           few different values, or numbers
             | [5, values]                                   anything else
             | [6, lengths, table]                           lists of structs, and dicts of counts as lists of (bucket, count)
             | [7, absent, unit, bases, steps]               integers that run on from row to row, whoever they are about
             | [8, absent, unit, lasts, steps]               as 1, told from its end; codes 1 and 2 are read, but no more written
             | [9, absent, scale, lasts, steps]              as 2, told from its end
             | [10, lengths, table]                          dicts of counts: in each subject's first row all of them, then what has
                                                             changed since its row before; 0 is one that is no more
    absent   = a byte per row, 1 where the value is None; nil where none is
    integers = width u8 (0, 1, 2, 4, 8), then signed little-endian numbers, all first bytes, then all second ones, …

``bases`` holds each subject's first value (less the reference's last, in code 1), ``lasts`` its last (less the reference's last,
in code 8), so that a whole second can be read by its end alone (`thin`), ``steps`` a difference per row, 0 at a subject's first.
Where a value is absent, the one before stands, at a subject's beginning its first one. ``lengths`` is a column; -1 is None. A field
that is not there has its default in all rows; one that we do not know is not looked at. Codes 5 and 7 keep the order of the rows,
the others that of subjects, by first appearance. A thread whose ``timeslices`` is -1 and whose tid is its process's pid repeats
what the process's own sample says; ``timeslices`` is told less ``vol`` and ``invol``, which run with it.

Nanoseconds are kept in steps of `layout.UNITS`: the counters of a tick to a two-thousandth of it, longest waits to 3 %. Threads, who
preempted whom and who woke whom stand in the order of their numbers.
"""
