#!/usr/bin/env python3
"""Whole-program bench: the client on one core, the built-in target on another, wrk beside it where it is installed.

    bench/run.py                     bodies of 0, 1 KiB, 16 KiB, 100 KiB and 1 MiB
    bench/run.py --only memory       peak memory at 1 and at 10 million requests
    bench/run.py --only soak         60 s at full speed: ends on time, memory flat, counts of both sides equal
    bench/run.py --only start        process start to the first request at the server, from the cache

Runs are interleaved (client, wrk, client, wrk, ...), and medians are shown: figures of shared machines move by 20 % within
minutes, so only the ratios of one block count. CPU a request is user and system time of the whole client process over its
completed requests. Standard library only; what is not installed is left out.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True

from common import SIZES, Bench, Target  # noqa: E402


class Bodies(Bench):
    def bodies(self):
        rows = []
        for name, size in SIZES:
            target = Target(self.binary, self.server, "mode=null")
            url = f"http://{target.address}/v1/chat/completions"
            path = self.dataset(size) if size else None
            sent = ["-f", path, "--repeat", "forever", "--dedup", "off"] if path else []
            if path:
                self.ringload(url, *sent, "-n", "100")  # the entry is built here, and the pages are in memory
            ours, theirs = [], []
            for _ in range(self.rounds):
                ours.append(self.ringload(url, "-c", "64", "-d", f"{self.seconds}s", *sent)[:2])
                if self.wrk:
                    theirs.append(self.run_wrk(url, path))
            target.stop()
            rps, cpu = (statistics.median(r[k] for r in ours) for k in (0, 1))
            row = {"body": name, "requests_per_s": round(rps), "cpu_us_per_request": round(cpu, 2), "MB_per_s": round(rps * size / 1e6)}
            if theirs:
                wrk_rps, wrk_cpu = (statistics.median(r[k] for r in theirs) for k in (0, 1))
                row |= {"wrk_requests_per_s": round(wrk_rps), "wrk_cpu_us_per_request": round(wrk_cpu, 2), "cpu_over_wrk": round(cpu / wrk_cpu, 2)}
            row["cpu_us_all"] = [round(r[1], 2) for r in ours]
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
        return rows

    def memory(self):
        target = Target(self.binary, self.server, "mode=null")
        rows = []
        for count in (1_000_000, 10_000_000):
            rps, cpu, summary, peak, wall = self.ringload(f"http://{target.address}/", "-b", '{"a":1}', "-c", "64", "-n", str(count))
            assert summary["requests"]["succeeded"] == count
            rows.append({"requests": count, "peak_MiB": round(peak / 1024, 1), "cpu_us_per_request": round(cpu, 2), "seconds": round(wall, 1)})
            print(rows[-1], file=sys.stderr, flush=True)
        target.stop()
        assert abs(rows[1]["peak_MiB"] - rows[0]["peak_MiB"]) <= 5, "memory grows with the number of requests"
        return rows

    def soak(self):
        target = Target(self.binary, self.server, "mode=check")
        path = self.dataset(1 << 10)
        url = f"http://{target.address}/"
        self.ringload(url, "-f", path, "-n", "1", "--body-digest")
        _, cpu, summary, peak, wall = self.ringload(url, "-f", path, "-c", "256", "-d", "60s", "--body-digest")
        counts = target.stop()
        issued = summary["requests"]["issued"] + 1
        row = {"seconds": round(wall, 2), "requests": issued, "target_requests": counts["requests"], "verified": counts["verified"],
               "wrong": counts["wrong"], "peak_MiB": round(peak / 1024, 1), "cpu_us_per_request": round(cpu, 2)}
        assert counts["requests"] == issued and counts["verified"] == issued and counts["wrong"] == 0, row
        assert wall < 62, row
        return [row]

    def start(self):
        rows = []
        for count in (1_000, 100_000):
            path = os.path.join(self.dir, f"start-{count}.jsonl")
            with open(path, "w") as f:
                f.writelines('{"messages":[],"n":%d}\n' % i for i in range(count))
            subprocess.run([self.binary, "build", path, "--json"], env=self.env, check=True, capture_output=True)
            time.sleep(2.1)  # a memo younger than this is not trusted, as it could hide an edit
            subprocess.run([self.binary, "build", path, "--json"], env=self.env, check=True, capture_output=True)
            took = []
            for _ in range(5):
                log = os.path.join(self.dir, "log")
                target = Target(self.binary, self.server, "mode=null", f"log={log}")
                begun = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                self.ringload(f"http://{target.address}/", "-f", path, "-c", "1", "-n", "1")
                target.stop()
                took.append((first_arrival_ns(log) - begun) / 1e6)
            rows.append({"records": count, "start_to_first_request_ms": round(statistics.median(took), 1)})
        return rows


def first_arrival_ns(log):
    for line in open(log):
        first = line.split()[0]
        if first.isdigit():
            return int(first)
    raise SystemExit(f"{log} has no arrival")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default="target/release/ringload")
    ap.add_argument("--cores", default="0,1", help="client,server")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=int, default=2)
    ap.add_argument("--only", action="append", default=[])
    args = ap.parse_args()
    bench = Bodies(args)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    try:
        for name in args.only or ["bodies"]:
            rows = getattr(bench, name)()
            print(json.dumps({name: rows}, indent=1))
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
