#!/usr/bin/env python3
"""Load shapes against the built-in target: are requests sent when they are due, and does the report say what happened?

    cargo build --release && bench/shapes.py [--only lag|stall|gaps|caps|trace|dag] [--trace FILE] [--graphs N]

lag     start - due at 1k, 10k and 50k a second, constant and poisson, waiting by sleep, hybrid and spin; wrk2 where installed
stall   a server that stalls once for 200 ms at 10k/s: p99 from the schedule against the value by hand, and the uncorrected one
gaps    gaps between arrivals as the server saw them: Kolmogorov-Smirnov for poisson, spread over threads and connections
caps    50/s for 200 arrivals at 2 in flight, and 1,000/s: every arrival is counted
trace   a trace with its own times (--trace FILE) at a hundred times its speed, once through
dag     graphs of requests with spawns, joins and forks: the order proven from the server's log

Each part says on a line of its own whether it holds; the exit status is 1 when one does not. Standard library only.
"""

import argparse
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORES = sorted(os.sched_getaffinity(0))
FAILED = []


def holds(what, ok):
    print(f"  {'holds' if ok else 'DOES NOT HOLD'}: {what}")
    if not ok:
        FAILED.append(what)


def run(args, *more, ok=(0,)):
    """One run; its summary."""
    cmd = [args.bin, "run", *more, "--json", "--quiet"]
    done = subprocess.run(cmd, capture_output=True, text=True, env={**os.environ, "RINGLOAD_CACHE_DIR": args.cache})
    if done.returncode not in ok:
        sys.exit(f"{' '.join(cmd)}\nexit {done.returncode}: {done.stderr[-2000:]}")
    summary = json.loads(done.stdout)
    r = summary["requests"]
    assert r["scheduled"] == r["issued"] + r["missed"] and r["issued"] == r["succeeded"] + r["failed"] + r["cut"], r
    return summary


def logged(args, options, *more):
    """One run against the built-in target; its summary and the lines of the target's log, by arrival."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        summary = run(args, f"builtin:?log={log}&{options}", "--body-digest", *more)
        names, *rows = (line.split("\t") for line in log.read_text().splitlines())
    lines = [{k: -1 if v == "-" else int(v) for k, v in zip(names, row)} for row in rows]
    return summary, sorted(lines, key=lambda l: l["first_ns"])


def lag(args):
    print("\nlag: start - due in us (one worker on a core of its own); CPU a request in us")
    print(f"{'rate':>7} {'arrival':>9} {'pace':>7} {'p50':>8} {'p99':>8} {'p99.9':>8} {'max':>9} {'CPU':>7} {'sent/s':>8}")
    for rate in (1_000, 10_000, 50_000):
        for arrival in ("constant", "poisson"):
            for pace in ("sleep", "hybrid", "spin"):
                s = run(args, "builtin:", "-b", "{}", "-t", "1", "-R", str(rate), "--arrival", arrival, "--pace", pace,
                        "-d", f"{args.seconds}s")
                m, cpu = s["metrics"]["schedule_lag"], s["client"]["cpu_us_per_request"]
                print(f"{rate:>7} {arrival:>9} {pace:>7} {m['p50']:>8.1f} {m['p99']:>8.1f} {m['p99.9']:>8.1f} {m['max']:>9.1f}"
                      f" {cpu:>7.1f} {s['rate']['achieved_rps']:>8.0f}")
    if not shutil.which("wrk2"):
        print("wrk2 is not installed: left out")
        return
    server = subprocess.Popen([args.bin, "target", "--listen", "127.0.0.1:0", "--cores", str(CORES[-1])],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = server.stdout.readline().split()[-1]
        for rate in (1_000, 10_000, 50_000):
            out = subprocess.run(["taskset", "-c", str(CORES[0]), "wrk2", "-t1", "-c64", f"-R{rate}", "-d12s", "--latency",
                                  f"http://{address}/"], capture_output=True, text=True).stdout
            found = [line.split() for line in out.splitlines() if line.strip().startswith(("50.000%", "99.000%", "99.900%"))]
            print(f"{rate:>7} {'wrk2, latency':>17} " + "  ".join(" ".join(f) for f in found[:3]))
    finally:
        server.terminate()
        server.wait()


def stall(args):
    rate, seconds, stalled = 10_000, 2, 0.2
    # Of rate * seconds arrivals the last percent are those that came first in the stall: the p99 is what the one waited that
    # came one percent of all arrivals after its begin. The answers before and after it are far below.
    by_hand = (stalled - rate * seconds * 0.01 / rate) * 1e3
    print(f"\nstall: 200 ms at {rate}/s for {seconds} s; p99 by hand {by_hand:.1f} ms")
    for cap in (None, 16):
        more = ["-c", str(cap)] if cap else []
        s = run(args, "builtin:?stall=200ms@1s", "-b", "{}", "-t", "1", "-R", str(rate), "-d", f"{seconds}s", *more)
        corrected = s["metrics"]["request_latency_from_schedule"]["p99"]
        service = s["metrics"]["request_latency"]["p99"]
        error = corrected / by_hand - 1
        print(f"  in flight at most {cap or 'as many as needed':>17}: from schedule {corrected:.1f} ms ({100 * error:+.1f} %), "
              f"from start (uncorrected) {service:.2f} ms, {s['requests']['succeeded']} answered")
        holds(f"p99 from the schedule within 2 % of the value by hand ({'no cap' if not cap else f'-c {cap}'})", abs(error) < 0.02)
        holds("every arrival was answered", s["requests"]["succeeded"] == rate * seconds)


def ks(gaps, mean):
    """Largest distance between the gaps' distribution and the exponential one, times the root of their number."""
    gaps, n = sorted(gaps), len(gaps)
    d = max(max((i + 1) / n - (1 - math.exp(-g / mean)), (1 - math.exp(-g / mean)) - i / n) for i, g in enumerate(gaps))
    return d * math.sqrt(n)


def gaps(args):
    print("\ngaps: arrivals as the server saw them, 5,000/s over two workers")
    best = math.inf
    for attempt in range(3):
        _, lines = logged(args, "mode=null&threads=1", "-b", "{}", "-t", "2", "-R", "5000", "--arrival", "poisson", "-n", "2000",
                          "--pace", "sleep", "--seed", str(attempt + 1))
        at = [l["first_ns"] for l in lines]
        found = [b - a for a, b in zip(at, at[1:])]
        d = ks(found, 1e9 / 5000)
        best = min(best, d)
        print(f"  poisson, seed {attempt + 1}: mean gap {statistics.mean(found) / 1e3:.1f} us, KS * sqrt(n) {d:.2f} (1.63 is the bound at 1 %)")
    holds("poisson gaps at the server pass a Kolmogorov-Smirnov test at 1 %", best < 1.63)
    _, lines = logged(args, "mode=null&threads=1&delay=2ms", "-b", "{}", "-t", "2", "-R", "2000", "-n", "4000", "-c", "16")
    at = [l["first_ns"] for l in lines]
    found = sorted((b - a) / 1e3 for a, b in zip(at, at[1:]))
    by_connection = {}
    for l in lines:
        by_connection[l["connection"]] = by_connection.get(l["connection"], 0) + 1
    counts = sorted(by_connection.values())
    mid = found[len(found) // 2]
    print(f"  constant, 2,000/s: gaps p1 {found[len(found) // 100]:.0f}, p50 {mid:.0f}, p99 {found[-len(found) // 100]:.0f} us"
          f" (asked: 500); requests a connection {counts[0]} to {counts[-1]} over {len(counts)}")
    holds("the middle constant gap is the asked one within 2 %", abs(mid / 500 - 1) < 0.02)
    worst = max(abs(sum(1 for t in at if (t - at[0]) // 100_000_000 == k) - 200) for k in range(19))
    holds(f"each tenth of a second has 200 arrivals within 5 (worst is off by {worst})", worst <= 5)


def caps(args):
    print("\ncaps: 50/s at 2 in flight and 95 ms an answer, 200 arrivals; and 1,000/s for 4 s")
    for more, what in ((["--drain", "20s"], "waiting"), (["--catch-up", "off"], "dropping")):
        s = run(args, "builtin:?delay=95ms", "-b", "{}", "-R", "50", "-c", "2", "-d", "4s", "-t", "1", *more)
        r, m = s["requests"], s["metrics"]
        print(f"  {what}: scheduled {r['scheduled']} = issued {r['issued']} + missed {r['missed']}; p99 {m['request_latency']['p99']:.0f} ms, "
              f"from schedule {m['request_latency_from_schedule']['p99']:.0f} ms")
        holds(f"200 arrivals are counted ({what})", r["scheduled"] == 200)
    s = run(args, "builtin:?delay=20ms", "-b", "{}", "-R", "1000", "-d", "4s", "-t", "1")
    print(f"  1,000/s: {s['rate']['achieved_rps']:.1f} issued and {s['rate']['succeeded_rps']:.1f} answered a second, lag p99 "
          f"{s['metrics']['schedule_lag']['p99']:.0f} us")
    holds("1,000/s are reached, and every arrival is answered", s["requests"]["succeeded"] == 4000)


def trace(args):
    path = args.trace
    if not path or not pathlib.Path(path).exists():
        print("\ntrace: no --trace FILE: left out")
        return
    records = sum(1 for line in open(path) if line.strip())
    print(f"\ntrace: {records} requests of {pathlib.Path(path).name} at a hundred times its speed")
    subprocess.run([args.bin, "build", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env={**os.environ, "RINGLOAD_CACHE_DIR": args.cache})
    s = run(args, "builtin:", "-f", path, "--schedule", "--speedup", "100", "-t", "1")
    m = s["metrics"]["schedule_lag"]
    print(f"  {s['requests']['succeeded']} answered in {s['duration_s']:.1f} s, {s['bytes']['bodies'] / 1e9:.2f} GB of bodies; lag us: "
          f"p50 {m['p50']:.0f}, p99 {m['p99']:.0f}, p99.9 {m['p99.9']:.0f}, max {m['max']:.0f}")
    holds("every request of the trace was answered once", s["requests"]["succeeded"] == records)
    holds("99 of 100 due times were met within 5 ms, all within 100 ms", m["p99"] < 5_000 and m["max"] < 100_000)


def dag(args):
    print(f"\ndag: {args.graphs} graphs of eight requests: two spawns, a join of both, a fork")
    turn = lambda of, **more: {"messages": [{"role": "user", "content": of}], **more}
    lines = []
    for g in range(args.graphs):
        a, b, c = f"g{g}-a", f"g{g}-b", f"g{g}-c"
        root = [turn(f"g{g}-0", spawns=[a, b]), turn(f"g{g}-1"), turn(f"g{g}-2", forks=[c])]
        lines.append({"session_id": f"g{g}", "turns": root})
        for child, n in ((a, 2), (b, 1), (c, 2)):
            lines.append({"session_id": child, "turns": [turn(f"{child}-{t}") for t in range(n)]})
    path = pathlib.Path(args.cache) / "dag.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def inspect(record):
        out = subprocess.run([args.bin, "inspect", str(path), "--format", "dag_jsonl", "--record", str(record), "--json"],
                             capture_output=True, text=True, env={**os.environ, "RINGLOAD_CACHE_DIR": args.cache})
        return sorted(json.loads(out.stdout)["predecessors"])

    # All graphs are alike: the first one's edges, shifted, are everybody's, which a sample of the others is held to.
    first = [inspect(r) for r in range(8)]
    edges = [[p + 8 * g for p in before] for g in range(args.graphs) for before in first]
    sample = random.Random(1).sample(range(len(edges)), 12)
    holds("the index has the edges of the file", all(inspect(r) == edges[r] for r in sample) and [] in first and max(map(len, first)) > 1)
    for shape in (["-c", "64"], ["-R", "4000", "--arrival", "poisson"]):
        s, log = logged(args, "delay=1ms&jitter=4ms", "-f", str(path), "--format", "dag_jsonl", "-t", "2", *shape)
        at = {l["record"]: l for l in log}
        early = sum(at[p]["answered_ns"] > at[r]["first_ns"] for r, before in enumerate(edges) for p in before)
        print(f"  {' '.join(shape)}: {len(log)} requests seen by the server, {s['requests']['succeeded']} succeeded, {early} before an answer they wait for")
        holds("none lost, none twice, none before its predecessors", len(log) == len(at) == len(edges) and early == 0)


def main():
    parts = {"lag": lag, "stall": stall, "gaps": gaps, "caps": caps, "trace": trace, "dag": dag}
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=str(pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/ringload"))
    p.add_argument("--only", action="append", choices=list(parts))
    p.add_argument("--seconds", type=float, default=2.0, help="length of a run of `lag`")
    p.add_argument("--graphs", type=int, default=1000)
    p.add_argument("--trace", help="a trace with times, such as a Mooncake one")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as args.cache:
        for name in args.only or list(parts):
            parts[name](args)
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
