"""What the benches share: the built-in target on a core of its own, datasets of distinct bodies, one run of ringload or wrk with
its CPU, and the facts of the machine. Standard library only."""

import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = [("0 (GET)", 0), ("1 KiB", 1 << 10), ("16 KiB", 16 << 10), ("100 KiB", 100 << 10), ("1 MiB", 1 << 20)]
DATASET_BYTES = 64 << 20


class Target:
    """The built-in target in a process of its own, pinned to one core."""

    def __init__(self, binary, core, *options):
        args = [binary, "target", "--listen", "127.0.0.1:0", "--cores", str(core), "--json", *options]
        self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        self.address = line.rsplit(" ", 1)[-1].strip()
        assert ":" in self.address, line

    def stop(self):
        self.process.terminate()
        out, _ = self.process.communicate(timeout=10)
        return json.loads(out)


def cpu_and_peak(args, env):
    """Runs a program: its output, seconds of CPU, peak resident KiB, wall seconds."""
    start = time.monotonic()
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(args)}: exit {process.returncode}: {err[-500:]}")
    return out, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, time.monotonic() - start


def rendering_s(out):
    """CPU seconds that wrk took to render the bodies of bench/replay.lua before it sent any; 0 without the script."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in out.splitlines() if line.startswith("rendered after"))


class Bench:
    """The client's core, the server's, a folder for data and cache, and the programs that are measured."""

    def __init__(self, args):
        self.binary = os.path.abspath(args.bin)
        self.client, self.server = args.cores.split(",")
        self.rounds, self.seconds = args.rounds, args.seconds
        self.dir = tempfile.mkdtemp(prefix="ringload-bench-")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RINGLOAD_")}
        self.env["RINGLOAD_CACHE_DIR"] = os.path.join(self.dir, "cache")
        self.wrk = shutil.which("wrk")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)

    def dataset(self, size):
        """A raw_payload file of distinct bodies of one size, 64 MiB in all (at most 20,000 bodies)."""
        path = os.path.join(self.dir, f"{size}.jsonl")
        if not os.path.exists(path):
            count = max(16, min(20_000, DATASET_BYTES // size))
            with open(path, "wb") as f:
                for i in range(count):
                    f.write(b'{"n":%10d,"x":"' % i)
                    f.write(random.Random(i).randbytes((size - 24) // 2 + 1).hex()[: size - 24].encode())
                    f.write(b'"}\n')
        return path

    def ringload(self, url, *args):
        """One run: requests a second, CPU microseconds a request, the summary, peak KiB, wall seconds."""
        command = [self.binary, "run", url, "--cores", self.client, "-t", "1", "--json", "--quiet", *args]
        out, cpu, peak, wall = cpu_and_peak(command, self.env)
        summary = json.loads(out)
        done = summary["requests"]["succeeded"]
        assert done and not summary["requests"]["failed"], summary["errors"]
        return summary["rate"]["succeeded_rps"], cpu * 1e6 / done, summary, peak, wall

    def run_wrk(self, url, path):
        args = ["taskset", "-c", self.client, self.wrk, "-t1", "-c64", f"-d{self.seconds}s"]
        if path:
            args += ["-s", os.path.join(HERE, "replay.lua")]
        out, cpu, _, _ = cpu_and_peak([*args, url], {**self.env, "REPLAY_FILE": path or ""})
        cpu -= rendering_s(out)
        done = int(next(line.split()[0] for line in out.splitlines() if "requests in" in line))
        return done / self.seconds, cpu * 1e6 / done


def quartiles(values):
    """First quartile, median, third quartile."""
    values = sorted(values)
    if len(values) < 2:
        return values[0], values[0], values[0]
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def machine(binary):
    """What a figure is worth nothing without."""
    model = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    version = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.strip()
    return {"cpu": model, "cores": sorted(os.sched_getaffinity(0)), "kernel": platform.release(), "ringload": version,
            "commit": commit or "unknown", "date": time.strftime("%Y-%m-%d", time.gmtime())}
