#!/usr/bin/env python3
"""How much the built-in target costs a request, beside nginx, and how exact its event streams are.

    cargo build --release && bench/target.py [--rounds N] [--seconds S] [--json FILE]

Peers are found on PATH (nginx, wrk) and left out when they are not there. Client on one core, server on another, the servers
interleaved round by round, every server up only while it is measured. CPU is the scheduler's own figure of the server's
threads (/proc/PID/task/*/schedstat), so it is the same measure for every server. Standard library only.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIENT_CORE, SERVER_CORE = sorted(os.sched_getaffinity(0))[0], sorted(os.sched_getaffinity(0))[-1]
SO_TIMESTAMPNS = 35
# A ratio is only printed when each side's rounds lie within this of its median.
SPREAD_MAX = 0.15

NGINX = """
daemon off; master_process off; worker_processes 1; pid {dir}/nginx.pid; error_log {dir}/error.log crit;
events {{ worker_connections 4096; use epoll; multi_accept on; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 60s; tcp_nodelay on; sendfile on; tcp_nopush on;
  client_max_body_size 64m; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s; open_file_cache max=10;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ default_type application/json; return 200 '{{"ok":true}}'; }}
    location /file {{ root {dir}; }}
  }}
}}
"""

# name, wrk body bytes, target options, nginx path
CASES = [
    ("GET", 0, "mode=null", "/"),
    ("POST 1 KB", 1 << 10, "mode=null", "/"),
    ("POST 100 KB", 100 << 10, "mode=null", "/"),
    ("GET, answer of 64 KB", 0, "mode=null&bytes=64KiB", "/file"),
    ("GET, answer of 1 MB", 0, "mode=null&bytes=1MiB", "/file"),
]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def pinned(core):
    return lambda: os.sched_setaffinity(0, {core})


def cpu_ns(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            total += int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total


@contextlib.contextmanager
def running(command, port):
    server = subprocess.Popen(command, preexec_fn=pinned(SERVER_CORE), stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{command[0]} did not start: {server.stderr.read().decode()[-500:]}") from None
                time.sleep(0.02)
        yield server
    finally:
        server.terminate()
        server.wait(10)


@contextlib.contextmanager
def ringload(args, query, log=None):
    port = free_port()
    options = query.split("&") + ([f"log={log}"] if log else [])
    command = [args.binary, "target", "--listen", f"127.0.0.1:{port}", "threads=1", *options]
    with running(command, port) as server:
        yield server, port


@contextlib.contextmanager
def nginx(bytes_of_file):
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        config = pathlib.Path(folder, "nginx.conf")
        config.write_text(NGINX.format(dir=folder, port=port))
        pathlib.Path(folder, "file").write_bytes(b"." * bytes_of_file)
        os.chmod(folder, 0o755)
        with running(["nginx", "-c", str(config), "-p", folder], port) as server:
            yield server, port


def wrk(port, path, body_bytes, seconds, folder):
    """Requests that wrk completed; it must not see an error."""
    command = ["wrk", "-t1", "-c64", f"-d{seconds}s", f"http://127.0.0.1:{port}{path}"]
    if body_bytes:
        script = pathlib.Path(folder, f"post-{body_bytes}.lua")
        script.write_text(f'wrk.method = "POST"\nwrk.body = string.rep("x", {body_bytes})\n')
        command += ["-s", str(script)]
    out = subprocess.run(command, preexec_fn=pinned(CLIENT_CORE), capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise SystemExit(f"wrk saw errors:\n{out}")
    return int(re.search(r"(\d+) requests in", out)[1])


def measure(server, port, path, body_bytes, args, folder):
    wrk(port, path, body_bytes, 1, folder)
    before, begin = cpu_ns(server.pid), time.monotonic()
    count = wrk(port, path, body_bytes, args.seconds, folder)
    used, wall = cpu_ns(server.pid) - before, time.monotonic() - begin
    return {"us": used / count / 1e3, "rps": count / wall, "busy": used / wall / 1e9}


def spread(values):
    middle = statistics.median(values)
    return max(abs(v - middle) for v in values) / middle


def compare(args, case, folder):
    name, body_bytes, query, path = case
    size = re.search(r"bytes=(\d+)(KiB|MiB)", query)
    file_bytes = int(size[1]) << {"KiB": 10, "MiB": 20}[size[2]] if size else 11
    rows = {"ringload": [], "nginx": []}
    for _ in range(args.rounds):
        with ringload(args, query) as (server, port):
            rows["ringload"].append(measure(server, port, "/", body_bytes, args, folder))
        if shutil.which("nginx"):
            with nginx(file_bytes) as (server, port):
                rows["nginx"].append(measure(server, port, path, body_bytes, args, folder))
    cost = {k: [r["us"] for r in v] for k, v in rows.items() if v}
    steady = all(spread(v) <= SPREAD_MAX for v in cost.values())
    ratio = None
    if steady and "nginx" in cost:
        # Requests a CPU second, ours over nginx's.
        ratio = statistics.median(cost["nginx"]) / statistics.median(cost["ringload"])
    return {"case": name, "rows": rows, "ratio": ratio}


def show(results):
    print("| case | server | CPU us a request, median (least to most) | requests a CPU second | core busy | over nginx |")
    print("| --- | --- | --- | --- | --- | --- |")
    for result in results:
        for server, rows in result["rows"].items():
            if not rows:
                continue
            us = sorted(r["us"] for r in rows)
            middle = statistics.median(us)
            busy = statistics.median(r["busy"] for r in rows)
            ratio = "" if server == "nginx" else f"{result['ratio']:.2f}" if result["ratio"] else "no steady figure"
            print(f"| {result['case']} | {server} | {middle:.2f} ({us[0]:.2f} to {us[-1]:.2f}) | {1e6 / middle:,.0f} "
                  f"| {busy:.0%} | {ratio} |")


def stream_lateness(args, streams, tokens, itl_ms, folder):
    """Lateness of each content event by the kernel's receive stamp on the client's socket, against whole + ttft + k * itl
    from the server's log: the client's own slowness is not in it."""
    log = pathlib.Path(folder, "requests.log")
    ttft_ns, itl_ns = 200_000_000, int(itl_ms * 1e6)
    query = f"mode=sse&ttft=200ms&itl={itl_ms}ms&tokens={tokens}"
    os.sched_setaffinity(0, {CLIENT_CORE})
    arrivals = [[] for _ in range(streams)]
    with ringload(args, query, log) as (server, port):
        socks = {}
        poll = select.epoll()
        for i in range(streams):
            s = socket.create_connection(("127.0.0.1", port))
            s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            socks[s.fileno()] = (s, i)
            poll.register(s, select.EPOLLIN)
        before, begin = cpu_ns(server.pid), time.monotonic()
        for s, i in socks.values():
            s.sendall(f"POST / HTTP/1.1\r\nHost: a\r\nX-Ringload-Record: {i}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            time.sleep(itl_ms / 1e3 / streams)
        open_streams, fused = streams, 0
        while open_streams:
            for fd, _ in poll.poll(30):
                s, i = socks[fd]
                data, extra, _, _ = s.recvmsg(1 << 16, 64)
                count = data.count(b'"content":" ')
                fused += max(0, count - 1)
                for level, kind, stamp in extra:
                    if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                        seconds, ns = struct.unpack("qq", stamp)
                        arrivals[i] += [seconds * 10**9 + ns] * count
                if b"[DONE]" in data:
                    open_streams -= 1
        used, wall = cpu_ns(server.pid) - before, time.monotonic() - begin
        for s, _ in socks.values():
            s.close()
        end = time.monotonic() + 10
        while log.read_text().count("\n") <= streams and time.monotonic() < end:
            time.sleep(0.05)
    offset = statistics.median(time.time_ns() - time.monotonic_ns() for _ in range(101))
    late = []
    for line in log.read_text().splitlines()[1:]:
        fields = line.split("\t")
        base = int(fields[1]) + offset + ttft_ns
        stamps = arrivals[int(fields[5])]
        if len(stamps) != tokens:
            raise SystemExit(f"stream {fields[5]} had {len(stamps)} of {tokens} events")
        late += [(at - base - k * itl_ns) / 1e3 for k, at in enumerate(stamps)]
    late.sort()
    at = lambda q: late[min(len(late) - 1, int(q * len(late)))]
    return {"streams": streams, "events": len(late), "rate": len(late) / wall, "p50": at(0.5), "p99": at(0.99),
            "p999": at(0.999), "max": late[-1], "least": late[0], "us": used / len(late) / 1e3, "fused": fused}


def show_lateness(rows):
    print("| streams | events a second | lateness us: least, p50, p99, p99.9, max | server CPU us an event | read together |")
    print("| --- | --- | --- | --- | --- |")
    for r in rows:
        print(f"| {r['streams']} | {r['rate']:,.0f} | {r['least']:.0f}, {r['p50']:.0f}, {r['p99']:.0f}, {r['p999']:.0f}, "
              f"{r['max']:.0f} | {r['us']:.1f} | {r['fused']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/ringload"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--only", choices=["cost", "lateness"])
    parser.add_argument("--case", help="only the cases with this in their name")
    parser.add_argument("--json", help="write everything there as well")
    args = parser.parse_args()
    if CLIENT_CORE == SERVER_CORE:
        raise SystemExit("two cores are needed: one for the client, one for the server")
    found = {name: shutil.which(name) for name in ("wrk", "nginx")}
    print(f"{platform.machine()}, Linux {platform.release()}, client on core {CLIENT_CORE}, server on core {SERVER_CORE}, "
          f"{args.rounds} rounds of {args.seconds} s, 64 connections; missing: "
          f"{', '.join(n for n, p in found.items() if not p) or 'nothing'}\n")
    results, late = [], []
    with tempfile.TemporaryDirectory() as folder:
        if found["wrk"] and args.only != "lateness":
            results = [compare(args, case, folder) for case in CASES if (args.case or "") in case[0]]
            show(results)
            print()
        if args.only != "cost":
            late = [stream_lateness(args, n, 256, itl, folder) for n, itl in ((1, 5), (100, 10), (1000, 50))]
            show_lateness(late)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"cost": results, "lateness": late}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
