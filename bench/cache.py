#!/usr/bin/env python3
"""The cache bench: what a build, a hit and a shared byte cost. Every figure is a ratio to something measured in the same run.

    bench/cache.py                         all of it but `aiperf` and `traces`
    bench/cache.py --only build            2 GB of raw lines against `sha256sum` on one core, and against `cp`; peak memory
    bench/cache.py --only hit              process start to the first byte at the server, at 1 k, 100 k and 10 M records
    bench/cache.py --only dedup            200 sessions of 30 turns that repeat their history
    bench/cache.py --only aiperf --aiperf VENV     the same dataset through AIPerf's dataset configure
    bench/cache.py --only traces --traces DIR      *_trace.jsonl: stored share, and replay equal to `--dedup off` byte for byte

Rounds are interleaved and the median is shown, with every value: shared machines move by 20 % within minutes. Files are read
once before they are measured, so the page cache is warm. Bodies are read back by a reader of its own, from the format table
in `src/cache/layout.rs`, so that what is compared is what lies in the files. Standard library only.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

MB = 1_000_000
TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
t = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
t.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=t, unk_token="<unk>", eos_token="<unk>", bos_token="<unk>").save_pretrained(sys.argv[1])
"""


def ended(args, env=None, cwd=None):
    """Runs a program to its end: its output, wall seconds, peak resident MiB."""
    begun = time.monotonic()
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=cwd)
    err = []
    reader = threading.Thread(target=lambda: err.append(process.stderr.read()))
    reader.start()
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begun
    reader.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, args))}: exit {process.returncode}: {err[0][-800:]}")
    return out, wall, usage.ru_maxrss / 1024


def median(values):
    return statistics.median(values)


def rounded(values, digits=3):
    return [round(v, digits) for v in values]


class Entry:
    """An entry, read by the table of `src/cache/layout.rs`."""

    SPANS, FIRST, COUNT, XXH3 = 0, 1, 2, 3

    def __init__(self, path):
        self.index = open(os.path.join(path, "index.dat"), "rb").read()
        self.data = open(os.path.join(path, "dataset.dat"), "rb")
        assert self.index[:8] == b"ringload" and struct.unpack_from("<I", self.index, 8)[0] == 2, "another layout"
        self.records = struct.unpack_from("<Q", self.index, 48)[0]

    def column(self, which):
        shape, width, rows, at, value = struct.unpack_from("<IIQQQ", self.index, 120 + which * 32)
        if shape == 0:
            return lambda row: value
        if shape == 1:
            return lambda row: row
        code = {4: "<I", 8: "<Q"}.get(width)
        if code is None:
            return lambda row: struct.unpack_from("<QQ", self.index, at + row * width)
        return lambda row: struct.unpack_from(code, self.index, at + row * width)[0]

    def bodies(self):
        spans, first, count = (self.column(c) for c in (self.SPANS, self.FIRST, self.COUNT))
        for record in range(self.records):
            parts = []
            for k in range(first(record), first(record) + count(record)):
                offset, length = spans(k)
                parts.append(os.pread(self.data.fileno(), length, offset))
            yield b"".join(parts)


class Bench:
    def __init__(self, args):
        self.args = args
        self.binary = os.path.abspath(args.bin)
        self.dir = tempfile.mkdtemp(prefix="ringload-cache-", dir=args.dir)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RINGLOAD_")}
        self.env["RINGLOAD_CACHE_DIR"] = os.path.join(self.dir, "cache")

    def path(self, name):
        return os.path.join(self.dir, name)

    def ringload(self, *args):
        out, wall, peak = ended([self.binary, *map(str, args)], self.env)
        return json.loads(out) if out.startswith(("{", "[")) else out, wall, peak

    def forget(self):
        shutil.rmtree(self.env["RINGLOAD_CACHE_DIR"], ignore_errors=True)

    def lines(self, name, total, low, high):
        """Chat bodies of `low` to `high` bytes with text that nothing repeats."""
        path = self.path(name)
        draw = random.Random(7)
        size = count = 0
        with open(path, "wb", buffering=1 << 22) as out:
            while size < total:
                text = draw.randbytes((draw.randint(low, high) - 90) // 2).hex().encode()
                size += out.write(b'{"model":"m","messages":[{"role":"user","content":"%d %s"}],"stream":true,"n":%d}\n' % (count, text, count))
                count += 1
        return path, size, count

    def build(self):
        rows = []
        kinds = {"small": ("1 to 4 KB", 1_000, 4_000), "large": ("100 to 500 KB", 100_000, 500_000)}
        for name, low, high in [kinds[kind] for kind in self.args.lines.split(",")]:
            path, size, count = self.lines("build.jsonl", self.args.bytes, low, high)
            subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
            os.sync()
            ours, sums, copies, peaks = [], [], [], []
            for _ in range(self.args.rounds):
                sums.append(ended(["taskset", "-c", self.args.core, "sha256sum", path])[1])
                copy = self.path("copy")
                copies.append(ended(["sh", "-c", f"cp --reflink=never {path} {copy} && sync {copy}"])[1])
                os.remove(copy)
                self.forget()
                os.sync()
                built, wall, peak = self.ringload("build", path, "--format", "raw_payload", "-t", 2, "--json")
                assert built["cache"] == "miss" and built["records"] == count, built
                ours.append(wall)
                peaks.append(peak)
            rows.append({
                "lines": name, "MB": size // MB, "records": count, "build_s": rounded(ours), "sha256sum_s": rounded(sums), "cp_and_sync_s": rounded(copies),
                "build_over_sha256sum": round(median(ours) / median(sums), 2), "build_over_cp": round(median(ours) / median(copies), 2),
                "build_MB_per_s": round(size / MB / median(ours)), "peak_MiB": round(max(peaks), 1),
                "stored_share": round(built["stored_bytes"] / built["body_bytes"], 3),
            })
            print(rows[-1], file=sys.stderr, flush=True)
            self.forget()
            os.remove(path)
        return rows

    def first_byte(self, *args):
        """Starts a run against a listener of our own: milliseconds to the first byte, and to the end of the process."""
        listener = socket.create_server(("127.0.0.1", 0))
        arrived = []

        def serve():
            conn, _ = listener.accept()
            got = conn.recv(1)
            arrived.append(time.monotonic_ns())
            while got and b"\r\n\r\n" not in got[-400_000:]:
                got += conn.recv(65536)
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            while conn.recv(65536):
                pass
            conn.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = "http://127.0.0.1:%d/" % listener.getsockname()[1]
        begun = time.monotonic_ns()
        out, _, _ = ended([self.binary, "run", url, *map(str, args), "-n", "1", "-c", "1", "-t", "1", "--json", "--quiet"], self.env)
        end = time.monotonic_ns()
        assert json.loads(out)["dataset"]["cache"] == "hit", out
        thread.join(5)
        listener.close()
        return (arrived[0] - begun) / 1e6, (end - begun) / 1e6

    def hit(self):
        rows = []
        for count in (1_000, 100_000, self.args.records):
            path = self.path("hit.jsonl")
            with open(path, "w", buffering=1 << 22) as out:
                for i in range(count):
                    out.write('{"messages":[],"n":%d}\n' % i)
            built, built_s, peak = self.ringload("build", path, "--format", "raw_payload", "--json")
            # Nothing that was touched within two seconds is trusted by its times; then one hit notes down what it checked.
            time.sleep(2.5)
            for _ in range(2):
                self.ringload("build", path, "--format", "raw_payload", "--json")
                time.sleep(2.5)
            took = [self.first_byte("-f", path, "--format", "raw_payload") for _ in range(max(5, self.args.rounds))]
            firsts, ends = [t[0] for t in took], [t[1] for t in took]
            rows.append({
                "records": count, "build_s": round(built_s, 2), "build_peak_MiB": round(peak, 1), "first_byte_ms": round(median(firsts), 1), "first_byte_ms_all": rounded(firsts, 1),
                "process_ms": round(median(ends), 1), "hit_over_build": round(median(firsts) / 1e3 / built_s, 4),
                "index_MB": round(os.path.getsize(os.path.join(built["entry"], "index.dat")) / MB, 1),
            })
            print(rows[-1], file=sys.stderr, flush=True)
            self.forget()
            os.remove(path)
        base = rows[0]["first_byte_ms"]
        for row in rows:
            row["growth_over_first"] = round(row["first_byte_ms"] / base, 2)
        return rows

    def agents(self, sessions=200, turns=30):
        """Sessions that send their whole history each turn, all in flight at once, behind one system prompt."""
        path = self.path("agents.jsonl")
        draw = random.Random(11)
        text = lambda n: draw.randbytes(n // 2).hex()
        system = text(6_000)
        history = ['{"model":"m","messages":[{"role":"system","content":"%s"}' % system] * sessions
        with open(path, "w", buffering=1 << 22) as out:
            for turn in range(turns):
                for s in range(sessions):
                    history[s] += ',{"role":"user","content":"%s"},{"role":"assistant","content":"%s"}' % (text(1_500), text(1_000))
                    out.write('%s],"stream":true,"max_tokens":%d}\n' % (history[s], 100 + turn))
        return path

    def shares(self, name, path, *args):
        """Stored over body bytes; and that every body of the entry is the one that `--dedup off` has."""
        self.forget()
        shared, seconds, peak = self.ringload("build", path, *args, "--json")
        plain, _, _ = self.ringload("build", path, *args, "--dedup", "off", "--json")
        assert shared["key"] != plain["key"] and plain["stored_bytes"] == plain["body_bytes"] == shared["body_bytes"], (shared, plain)
        same, digest = 0, hashlib.sha256()
        for a, b in zip(Entry(shared["entry"]).bodies(), Entry(plain["entry"]).bodies(), strict=True):
            assert a == b, f"{name}: record {same} differs"
            digest.update(b"%d:" % len(a))
            digest.update(a)
            same += 1
        assert same == shared["records"]
        # And once over the wire, each body against the digest of the plain one that the index holds.
        run, _, _ = self.ringload("run", "builtin:?mode=check", "-f", path, *args, "-c", 4, "--json", "--quiet")
        target = run["target"]
        assert run["requests"]["succeeded"] == same == target["verified"] and target["wrong"] == 0, (run["requests"], target)
        row = {
            "dataset": name, "records": same, "body_MB": round(shared["body_bytes"] / MB, 1), "stored_share": round(shared["stored_bytes"] / shared["body_bytes"], 3),
            "build_s": round(seconds, 2), "peak_MiB": round(peak, 1), "spans_max": shared["report"]["spans_max"], "replayed_and_equal": same, "sha256": digest.hexdigest()[:16],
        }
        print(row, file=sys.stderr, flush=True)
        return row

    def dedup(self):
        row = self.shares("200 sessions of 30 turns", self.agents(), "--format", "raw_payload")
        assert row["stored_share"] < 0.10, row
        return [row]

    def traces(self):
        rows = []
        for name in sorted(os.listdir(self.args.traces)):
            if name.endswith("_trace.jsonl"):
                rows.append(self.shares(name, os.path.join(self.args.traces, name), "--format", "mooncake_trace", "--model", "m"))
        return rows

    def aiperf(self):
        program = os.path.join(self.args.aiperf or "", "bin", "aiperf")
        if not self.args.aiperf or not os.path.exists(program):
            return [{"skipped": "AIPerf is not there; name its environment with --aiperf VENV"}]
        path, size, count = self.lines("aiperf.jsonl", self.args.bodies * 1_100, 1_090, 1_110)
        tokenizer = self.path("tokenizer")
        ended([os.path.join(self.args.aiperf, "bin", "python"), "-c", TOKENIZER, tokenizer])
        target = subprocess.Popen([self.binary, "target", "--listen", "127.0.0.1:0", "mode=sse"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        address = target.stderr.readline().rsplit(" ", 1)[-1].strip()
        out = self.path("artifacts")
        command = [
            program, "profile", "--url", f"http://{address}", "--model", "m", "--endpoint-type", "chat", "--custom-dataset-type", "raw_payload", "--input-file", path,
            "--request-count", "1", "--use-server-token-count", "--tokenizer", tokenizer, "--ui", "none", "--output-artifact-dir", out,
        ]
        env = {**self.env, "XDG_CACHE_HOME": self.path("other-cache"), "HOME": self.dir}
        try:
            text, theirs_wall, theirs_peak = ended(command, env)
        finally:
            target.terminate()
            target.wait()
        logs = text + "".join(open(os.path.join(d, f)).read() for d, _, fs in os.walk(out) for f in fs if f.endswith(".log"))
        theirs = float(re.search(r"Dataset configured in ([0-9.]+) seconds", logs)[1])
        ours = []
        for _ in range(self.args.rounds):
            self.forget()
            built, wall, peak = self.ringload("build", path, "--format", "raw_payload", "-t", 2, "--json")
            assert built["records"] == count and built["cache"] == "miss"
            ours.append(wall)
        return [{
            "records": count, "MB": size // MB, "dataset_configured_s": theirs, "its_run_s": round(theirs_wall, 1), "its_largest_process_MiB": round(theirs_peak),
            "build_s": rounded(ours), "times_faster": round(theirs / median(ours)), "peak_MiB": round(peak, 1),
        }]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", default="target/release/ringload")
    ap.add_argument("--dir", help="where datasets and caches go; they take 5 GB")
    ap.add_argument("--bytes", type=int, default=2_000 * MB, help="size of the datasets of `build`")
    ap.add_argument("--lines", default="small,large", help="kinds of lines of `build`")
    ap.add_argument("--records", type=int, default=10_000_000, help="the most records of `hit`")
    ap.add_argument("--bodies", type=int, default=200_000, help="bodies of `aiperf`")
    ap.add_argument("--core", default="0", help="the core of sha256sum")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--aiperf", help="virtual environment that has AIPerf")
    ap.add_argument("--traces", help="folder with *_trace.jsonl")
    ap.add_argument("--only", action="append", default=[])
    args = ap.parse_args()
    bench = Bench(args)
    names = args.only or ["build", "hit", "dedup", *(["traces"] if args.traces else []), *(["aiperf"] if args.aiperf else [])]
    try:
        for name in names:
            print(json.dumps({name: getattr(bench, name)()}, indent=1), flush=True)
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
