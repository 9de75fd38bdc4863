#!/usr/bin/env python3
"""Bench of connections: TLS beside wrk and oha, many connections, and connections that come and go.

    bench/net.py                 all three
    bench/net.py --only tls      TLS 1.3, AES-128-GCM, bodies of 1 KiB and 100 KiB, against nginx
    bench/net.py --only many     100 and 10,000 connections of one worker: CPU a request, memory a connection
    bench/net.py --only churn    50,000 connections opened and closed over four source addresses

As in bench/run.py runs are interleaved and medians shown; only the ratios of one block count. Memory a connection is the
difference of the peak resident sizes at 10,000 and at 100 connections over the 9,900 between them: user memory, whose rings and
buffers are in it, and nothing of the kernel's. What is not installed (nginx, wrk, oha) is told and left out.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True

from common import Bench, Target, cpu_and_peak  # noqa: E402

CIPHER = "TLS_AES_128_GCM_SHA256"


class Nginx:
    """nginx over TLS, one process pinned to the server's core, that takes any body and answers with two bytes."""

    def __init__(self, folder, core):
        self.cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
             "-out", self.cert, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        temps = "".join(f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        conf = os.path.join(folder, "nginx.conf")
        with open(conf, "w") as f:
            f.write(f"""daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 2048; }}
http {{ access_log off; client_max_body_size 8m; keepalive_requests 100000000; {temps}
  server {{ listen 127.0.0.1:{self.port} ssl backlog=1024; ssl_certificate {self.cert}; ssl_certificate_key {key};
    ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites {CIPHER};
    location / {{ client_body_buffer_size 256k; return 200 ok; }} }} }}
""")
        self.process = subprocess.Popen(["taskset", "-c", core, "nginx", "-c", conf, "-e", os.path.join(folder, "error.log")])
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                return
            except OSError:
                time.sleep(0.02)
        raise SystemExit("nginx does not listen")

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


class NetBench(Bench):
    def run_oha(self, url, body):
        args = ["taskset", "-c", self.client, "oha", "--no-tui", "--insecure", "-c", "64", "-z", f"{self.seconds}s", "-m", "POST",
                "-D", body, "--output-format", "json", url]
        out, cpu, _, _ = cpu_and_peak(args, self.env)
        done = sum(json.loads(out)["statusCodeDistribution"].values())
        return done / self.seconds, cpu * 1e6 / done

    def tls(self):
        if not shutil.which("nginx") or not shutil.which("openssl"):
            print("tls: left out, nginx or openssl is not installed")
            return
        server = Nginx(self.dir, self.server)
        url = f"https://127.0.0.1:{server.port}/v1"
        print(f"TLS 1.3, {CIPHER}, 64 connections, nginx on core {self.server}, client on core {self.client}")
        print(f"{'body':8} {'client':11} {'requests/s':>11} {'CPU us/request':>15} {'of wrk':>7}")
        try:
            for name, size in (("1 KiB", 1 << 10), ("100 KiB", 100 << 10)):
                path = self.dataset(size)
                body = os.path.join(self.dir, f"one-{size}")
                with open(path, "rb") as f, open(body, "wb") as to:
                    to.write(f.readline()[:-1])
                sent = ["-f", path, "--repeat", "forever", "--dedup", "off", "-k", "--tls-min", "1.3"]
                self.ringload(url, *sent, "-n", "100", "-c", "4")
                runs = {"ringload": lambda: self.ringload(url, "-c", "64", "-d", f"{self.seconds}s", *sent)[:2]}
                if self.wrk:
                    runs["wrk"] = lambda: self.run_wrk(url, path)
                if shutil.which("oha"):
                    runs["oha, 1 body"] = lambda: self.run_oha(url, body)
                found = {who: [] for who in runs}
                for _ in range(self.rounds):
                    for who, go in runs.items():
                        found[who].append(go())
                base = statistics.median(c for _, c in found["wrk"]) if self.wrk else None
                for who, all_runs in found.items():
                    rate, cpu = (statistics.median(column) for column in zip(*all_runs))
                    print(f"{name:8} {who:11} {rate:11.0f} {cpu:15.2f} {f'{cpu / base:7.2f}' if base else '':>7}", flush=True)
        finally:
            server.stop()
        missing = [peer for peer in ("wrk", "oha") if not shutil.which(peer)]
        if missing:
            print(f"left out, not installed: {', '.join(missing)}")

    def many(self):
        target = Target(self.binary, self.server, "mode=null")
        url = f"http://{target.address}/v1/chat/completions"
        found = {100: [], 10_000: []}
        for _ in range(self.rounds):
            for connections, runs in found.items():
                _, cpu, s, peak, _ = self.ringload(url, "-b", "x" * 1024, "-c", str(connections), "-d", f"{self.seconds}s")
                assert s["connections"]["established_peak"] == connections, s["connections"]
                runs.append((cpu, peak, s["rate"]["succeeded_rps"]))
        target.stop()
        few, lots = ([statistics.median(column) for column in zip(*runs)] for runs in found.values())
        print("one worker, POST 1 KiB, plain")
        for name, (cpu, peak, rate) in (("100", few), ("10,000", lots)):
            print(f"{name:>7} connections: {rate:9.0f} requests/s, {cpu:6.2f} us of CPU a request, {peak / 1024:6.1f} MiB resident")
        print(f"CPU a request: {lots[0] / few[0]:.2f} times; memory a connection: {(lots[1] - few[1]) / 9_900:.2f} KiB", flush=True)

    def churn(self):
        target = Target(self.binary, self.server, "mode=null")
        url = f"http://{target.address}/v1/chat/completions"
        rate, cpu, s, _, wall = self.ringload(url, "-c", "200", "-n", "50000", "--reuse", "never", "--source-ip", "127.0.0.2-127.0.0.5")
        counts = target.stop()
        assert s["connections"]["opened"] == 50_000 and not s["errors"], (s["connections"], s["errors"])
        print(f"50,000 connections over four sources: {wall:.1f} s, {rate:.0f} a second, {cpu:.1f} us of CPU each; "
              f"the target saw {counts.get('connections', counts)}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default=os.path.join("target", "release", "ringload"))
    ap.add_argument("--cores", default="0,1", help="client,server")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=int, default=2)
    ap.add_argument("--only", choices=["tls", "many", "churn"])
    args = ap.parse_args()
    bench = NetBench(args)
    try:
        for part in [args.only] if args.only else ["tls", "many", "churn"]:
            getattr(bench, part)()
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
