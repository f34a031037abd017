"""A process with several interpreters: `python interpreters.py MAKER` says ``ready`` once each of them sleeps in a function of its own.

MAKER is who makes them: ``main``, the main thread, or ``thread``, each thread its own. Runs on Python 3.8 to 3.14.
"""

import os
import sys
import threading
import time

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

CODE = """
import os, time
def inside_{0}():
    os.write({1}, b"x")
    time.sleep(600)
inside_{0}()
"""


def run(made, number, ready):
    interpreters.run_string(made or interpreters.create(), CODE.format(number, ready))


def waiting():
    time.sleep(600)


def main(maker):
    reads, ready = os.pipe()
    resting = interpreters.create()
    made = [interpreters.create() if maker == "main" else None for _ in range(2)]
    for number, one in enumerate(made):
        threading.Thread(target=run, args=(one, number, ready), daemon=True).start()
        os.read(reads, 1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    waiting()
    return resting


if __name__ == "__main__":
    main(sys.argv[1])
