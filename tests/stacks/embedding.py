"""A process with two Pythons: `python embedding.py LIBPYTHON` says ``ready`` once the second one sleeps, in a thread."""

import ctypes
import os
import sys
import threading
import time

CODE = b"""
import sys, time
def embedded():
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    time.sleep(600)
embedded()
"""


def embed():
    library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    library.Py_InitializeEx(0)
    library.PyRun_SimpleString(CODE)


def waiting():
    time.sleep(600)


if __name__ == "__main__":
    threading.Thread(target=embed, daemon=True).start()
    waiting()
