"""Huey on SQLite with fsync: jobs that do nothing, taken and run one at a time: `python huey_jobs.py FILE N`.

They are enqueued before, which is not measured. Prints the seconds that the rest took.
"""

import sys
import time

from huey import SqliteHuey


def nothing(n: int) -> None: ...


def main(file: str, number: int) -> None:
    queue = SqliteHuey("bench", filename=file, results=False, fsync=True)
    enqueue = queue.task()(nothing)
    for n in range(number):
        enqueue(n)
    began, done = time.perf_counter(), 0
    while (task := queue.dequeue()) is not None:
        queue.execute(task)
        done += 1
    print("seconds", time.perf_counter() - began)
    print("jobs", done)


main(sys.argv[1], int(sys.argv[2]))
