#!/usr/bin/env python3
"""What streams, rows and records cost: the client on one core, the built-in target on another.

    cargo build --release && bench/streams.py [--rounds N] [--only streams|rows|records] [--json FILE]

    streams   1,000 concurrent streams of 256 events: client CPU an event, beside the same bytes received without a look at them
              (--stream off), once as fast as they come and once at 20 ms an event
    rows      client CPU a request with records and without
    records   10 million requests with records: peak memory, and the time from the end of the load to the whole run directory

Sides are interleaved round by round, and medians of a round's ratio are shown with their spread: figures of shared machines
move by 20 % within minutes, so only the ratios of one block count. CPU is getrusage of the client's workers (of its whole
process for `rows`). Standard library only.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORES = sorted(os.sched_getaffinity(0))
CHAT = '{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}'


class Target:
    """The built-in target in a process of its own, pinned to one core."""

    def __init__(self, binary, options):
        command = [binary, "target", "--listen", "127.0.0.1:0", "--cores", str(CORES[-1]), *options.split("&")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        self.address = line.rsplit(" ", 1)[-1].strip()
        assert ":" in self.address, line

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=20)


def client(binary, address, *args):
    """One run: its summary, peak resident MiB, wall seconds."""
    command = [binary, "run", f"http://{address}/v1/chat/completions", "-t", "1", "--cores", str(CORES[0]), "--json", "--quiet", *args]
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}: {err[-800:]}")
    return json.loads(out), usage.ru_maxrss / 1024, time.monotonic() - start


def worker_cpu_s(summary):
    return summary["client"]["cpu_user_s"] + summary["client"]["cpu_system_s"]


def shown(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def streams(args):
    results = []
    for name, options, requests in (
        ("as fast as they come", "mode=sse&ttft=0ms&itl=0ms&tokens=256", 6000),
        ("20 ms an event", "mode=sse&ttft=20ms&itl=20ms&tokens=256", 1000),
    ):
        cost = {"auto": [], "off": []}
        rate = []
        with Target(args.bin, options) as target:
            for _ in range(args.rounds):
                for side in cost:
                    s, _, _ = client(args.bin, target.address, "-b", CHAT, "-c", "1000", "-n", str(requests), "--stream", side, "--drain", "30s")
                    assert s["requests"]["succeeded"] == requests, (s["requests"], s["errors"])
                    if side == "auto":
                        gaps = s["metrics"]["inter_chunk_latency"]["count"]
                        assert gaps == requests * 255, gaps
                    events = requests * 256
                    cost[side].append(worker_cpu_s(s) / events * 1e6)
                    if side == "auto":
                        rate.append(events / worker_cpu_s(s))
        ratios = [a / b for a, b in zip(cost["auto"], cost["off"])]
        results.append({"case": name, "us_an_event": cost["auto"], "us_unread": cost["off"], "ratio": ratios, "events_per_cpu_s": rate})
        print(f"1,000 streams of 256 events, {name}:")
        print(f"  client CPU an event        {shown(cost['auto'])} us")
        print(f"  same bytes, not looked at  {shown(cost['off'])} us")
        print(f"  ratio                      {shown(ratios)} (at most 1.5)")
        print(f"  events a second a core     {statistics.median(rate):,.0f}")
    return results


def rows(args):
    requests = 400_000
    plain, kept = [], []
    with Target(args.bin, "mode=null") as target, tempfile.TemporaryDirectory(dir=args.folder) as work:
        for k in range(args.rounds):
            for side in (plain, kept):
                more = ["-o", f"{work}/{k}"] if side is kept else []
                s, _, _ = client(args.bin, target.address, "-b", "{}", "-c", "64", "-n", str(requests), *more)
                assert s["requests"]["succeeded"] == requests, s["requests"]
                side.append(worker_cpu_s(s) / requests * 1e9)
            shutil.rmtree(f"{work}/{k}", ignore_errors=True)
    more = [a - b for a, b in zip(kept, plain)]
    print(f"rows: {shown(plain)} ns of worker CPU a request without, {shown(kept)} ns with; a row costs {shown(more)} ns (under 150)")
    return {"without_ns": plain, "with_ns": kept, "row_ns": more}


def records(args):
    requests = args.requests
    with Target(args.bin, "mode=null") as target, tempfile.TemporaryDirectory(dir=args.folder) as work:
        s, peak, wall = client(args.bin, target.address, "-b", "{}", "-c", "64", "-n", str(requests), "-o", f"{work}/run")
        assert s["requests"]["succeeded"] == requests, s["requests"]
        size = os.path.getsize(f"{work}/run/records.parquet")
        _, few, _ = client(args.bin, target.address, "-b", "{}", "-c", "64", "-n", "100k", "-o", f"{work}/few")
    after = wall - s["duration_s"]
    print(
        f"records of {requests:,} requests: load {s['duration_s']:.1f} s, then {after:.1f} s to the run directory; "
        f"records.parquet {size / 2**20:.0f} MiB; peak memory {peak:.0f} MiB ({few:.0f} MiB with 100,000)"
    )
    return {"requests": requests, "load_s": s["duration_s"], "after_s": after, "parquet_bytes": size, "peak_mib": peak, "peak_mib_100k": few}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "target/release/ringload"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--only", choices=["streams", "rows", "records"])
    parser.add_argument("--folder", help="where run directories go")
    parser.add_argument("--json")
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Linux {platform.release()}, cores {CORES}, {args.rounds} rounds")
    cases = {"streams": streams, "rows": rows, "records": records}
    results = {name: case(args) for name, case in cases.items() if args.only in (None, name)}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
