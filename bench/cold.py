#!/usr/bin/env python3
"""Bench of a dataset that is not in memory: an open loop after its pages were dropped, and again when they are there.

    bench/cold.py                        1 MiB bodies, 512 MiB of them, 100 a second for five seconds, sequential and shuffled
    bench/cold.py --bin OLD --bin NEW    several builds, interleaved

`client late` is start - due (p99, max), `latency from due` what a user of the server would have felt. `stood still` are the major
page faults of the client's workers, `waited` the bodies that waited for the disk beside the ring. Standard library only.
"""

import argparse
import os
import shutil
import statistics
import tempfile

from run import Bench, Target


def drop(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            if name == "dataset.dat":
                fd = os.open(os.path.join(root, name), os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", action="append", default=[])
    ap.add_argument("--cores", default="0,1", help="client,server")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=int, default=5)
    ap.add_argument("--rate", type=int, default=100)
    ap.add_argument("--size", type=int, default=1 << 20)
    ap.add_argument("--count", type=int, default=512)
    ap.add_argument("--folder", default=None, help="on the disk that is measured")
    args = ap.parse_args()
    bench = Bench(args=argparse.Namespace(bin=(args.bin or ["target/release/ringload"])[0], cores=args.cores, rounds=args.rounds, seconds=args.seconds))
    binaries = [os.path.abspath(b) for b in args.bin] or [bench.binary]
    if args.folder:
        shutil.rmtree(bench.dir)
        bench.dir = tempfile.mkdtemp(prefix="ringload-bench-", dir=args.folder)
        bench.env["RINGLOAD_CACHE_DIR"] = os.path.join(bench.dir, "cache")
    try:
        path = os.path.join(bench.dir, "cold.jsonl")
        with open(path, "wb") as f:
            for i in range(args.count):
                f.write(b'{"n":%10d,"x":"' % i + os.urandom((args.size - 24) // 2).hex().encode() + b'"}\n')
        target = Target(binaries[0], bench.server, "mode=null")
        url = f"http://{target.address}/"
        bench.ringload(url, "-f", path, "-n", "1")
        found = {}
        for _ in range(args.rounds):
            for order in ("sequential", "shuffle"):
                for state in ("cold", "warm"):
                    for binary in binaries:
                        bench.binary = binary
                        if state == "cold":
                            drop(bench.env["RINGLOAD_CACHE_DIR"])
                        run = ["-f", path, "--order", order, "-R", str(args.rate), "-d", f"{args.seconds}s"]
                        _, cpu, s, _, _ = bench.ringload(url, *run)
                        lag, felt = s["metrics"]["schedule_lag"], s["metrics"]["request_latency_from_schedule"]
                        c = s["client"]
                        row = (lag["p99"] / 1e3, lag["max"] / 1e3, felt["p99"], cpu, c.get("major_faults", -1), c["cold_slices"])
                        found.setdefault((order, state, binary), []).append(row)
        target.stop()
        print(f"{args.count} bodies of {args.size} bytes, {args.rate}/s, client on core {bench.client}, medians of {args.rounds}")
        print(f"{'order':11} {'pages':5} {'late p99':>9} {'max':>8} {'from due p99':>13} {'CPU us':>8} {'stood still':>12} {'waited':>7}")
        for (order, state, binary), rows in found.items():
            lag, most, felt, cpu, faults, waited = (statistics.median(column) for column in zip(*rows))
            name = f"  {os.path.basename(binary)}" if len(binaries) > 1 else ""
            print(f"{order:11} {state:5} {lag:6.2f} ms {most:5.1f} ms {felt:10.2f} ms {cpu:8.0f} {faults:12.0f} {waited:7.0f}{name}")
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
