#!/usr/bin/env python3
"""Tries to get one wrong byte out of the cache, for as long as it is told to.

    bench/cache_attack.py --seconds 3600 --seed 1

Each step does something to a cache or to an input (bytes flipped, files cut, grown, swapped between entries of equal shape,
memos altered, the input edited with its size and time put back or through a map, builders and runs killed, four processes at
once) and then runs the program against a server that keeps every body. The bodies must be those of the input as it is now, in
order, or, when the input was edited meanwhile, wholly those of before or of after, or the run must refuse. At its end the cache
must be clean. The seed gives the same steps again; what the machine does between them differs. Standard library only.
"""

import argparse
import collections
import json
import mmap
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time


class Sink:
    """A server that answers everything and keeps the bodies."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.bodies = []
        threading.Thread(target=self.accept, daemon=True).start()

    def url(self):
        return "http://127.0.0.1:%d/" % self.listener.getsockname()[1]

    def accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn):
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        have = b""
        while True:
            end = have.find(b"\r\n\r\n")
            if end >= 0:
                head = have[:end].lower()
                at = head.find(b"content-length:")
                size = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
                if len(have) >= end + 4 + size:
                    self.bodies.append(have[end + 4 : end + 4 + size])
                    have = have[end + 4 + size :]
                    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    continue
            got = conn.recv(1 << 18)
            if not got:
                return conn.close()
            have += got


class Attack:
    def __init__(self, args):
        self.binary = os.path.abspath(args.bin)
        self.draw = random.Random(args.seed)
        self.dir = tempfile.mkdtemp(prefix="ringload-attack-", dir=args.dir)
        self.cache = os.path.join(self.dir, "cache")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RINGLOAD_")}
        self.env["RINGLOAD_CACHE_DIR"] = self.cache
        self.counts = collections.Counter()
        self.last = "nothing"
        self.inputs = [os.path.join(self.dir, f"{name}.jsonl") for name in "ab"]
        self.lines = {path: self.make(k) for k, path in enumerate(self.inputs)}
        for path in self.inputs:
            self.write(path)

    def make(self, k):
        """Bodies of one shape and two contents: what is swapped between them fits in every size and count."""
        draw = random.Random(3)
        text = lambda n: "".join(draw.choices("abcdefgh"[k :: 2] + "XYZ"[k : k + 1], k=n))
        history, lines = '{"m":[', []
        for n in (40, 900, 5_000, 17_000, 33_000):
            lines += ['{"t":"%s"}' % text(n)] * 2
        for _ in range(20):  # together more than 1 MiB, from where on digests have memos
            history += '"%s",' % text(6_000)
            lines.append(history + '""]}')
        return [line.encode() for line in lines]

    def write(self, path):
        with open(path, "wb") as out:
            out.write(b"\n".join(self.lines[path]) + b"\n")
        # At rest for long: its memo is trusted at once.
        old = time.time() - 1000
        os.utime(path, (old, old))

    def start(self, *args):
        return subprocess.Popen([self.binary, *args], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def replay(self, path, wants, *args, may_refuse=False):
        sink = Sink()
        process = self.start("run", sink.url(), "-f", path, "--format", "raw_payload", "-c", "1", "-t", "1", "--json", "--quiet", *args)
        out, err = process.communicate(timeout=60)
        # Wakes the thread that accepts, which would keep the sink and all its bodies.
        sink.listener.shutdown(socket.SHUT_RDWR)
        sink.listener.close()
        self.counts["replays"] += 1
        if may_refuse and process.returncode == 2 and "changed while it was read" in err:
            self.counts["refused"] += 1
            return
        if may_refuse and process.returncode == 1 and ("cache_changed" in out or "changed under the run" in out + err):
            self.counts["told as changed"] += 1
            return
        state = json.loads(out)["dataset"]["cache"] if out.startswith("{") else "?"
        self.counts[state] += 1
        good = process.returncode == 0 and any(sink.bodies == want for want in wants)
        if not good:
            kept = tempfile.mkdtemp(prefix="ringload-wrong-")
            subprocess.run(["cp", "-a", self.dir, kept], stderr=subprocess.DEVNULL)
            with open(os.path.join(kept, "bodies"), "wb") as f:
                f.write(b"\n".join(sink.bodies))
            wrong = [n for n, (a, b) in enumerate(zip(sink.bodies, wants[-1])) if a != b]
            raise SystemExit(f"WRONG after {self.last}: exit {process.returncode}, {len(sink.bodies)} bodies of {len(wants[-1])}, records {wrong[:5]} differ, cache {state}; kept in {kept}\n{err[-500:]}")

    def files(self, memos=True):
        found = []
        for folder, _, names in os.walk(self.cache):
            found += [os.path.join(folder, n) for n in names if not n.endswith(".lock") and (memos or "inputs" not in folder)]
        return sorted(found)

    def damage(self):
        files = self.files()
        if not files:
            return
        path = self.draw.choice(files)
        meta = os.stat(path)
        kind = self.draw.choice(["flip", "zero", "cut", "grow", "empty", "remove", "swap"])
        try:
            if kind == "remove":
                os.remove(path)
            elif kind == "swap":
                other = self.draw.choice([f for f in files if os.path.basename(f) == os.path.basename(path)])
                a, b = open(path, "rb").read(), open(other, "rb").read()
                open(path, "wb").write(b)
                open(other, "wb").write(a)
            else:
                with open(path, "r+b") as f:
                    at = self.draw.randrange(max(1, meta.st_size))
                    if kind == "flip":
                        f.seek(at)
                        byte = f.read(1) or b"\0"
                        f.seek(at)
                        f.write(bytes([byte[0] ^ (1 << self.draw.randrange(8))]))
                    elif kind == "zero":
                        f.seek(at)
                        f.write(bytes(min(self.draw.randrange(1, 5000), meta.st_size - at)))
                    else:
                        f.truncate({"cut": at, "grow": meta.st_size + self.draw.randrange(1, 9000), "empty": 0}[kind])
            if self.draw.random() < 0.5 and os.path.exists(path):
                os.utime(path, ns=(meta.st_atime_ns, meta.st_mtime_ns))
        except FileNotFoundError:
            pass

    def edit(self, path):
        """Changes the input in place; its size stays, and mostly its time too."""
        lines = list(self.lines[path])
        n = self.draw.randrange(len(lines))
        line = bytearray(lines[n])
        at = self.draw.randrange(6, len(line) - 4)
        if line[at : at + 1] not in (b'"', b",", b"[", b"]", b"{", b"}", b":", b"\\"):
            line[at] = self.draw.choice(b"0123456789")
        lines[n] = bytes(line)
        offset = sum(len(x) + 1 for x in lines[:n]) + at
        meta = os.stat(path)
        with open(path, "r+b") as f:
            if self.draw.random() < 0.4:
                with mmap.mmap(f.fileno(), 0) as view:
                    view[offset : offset + 1] = line[at : at + 1]
            else:
                f.seek(offset)
                f.write(line[at : at + 1])
        if self.draw.random() < 0.7:
            os.utime(path, ns=(meta.st_atime_ns, meta.st_mtime_ns))
        before, self.lines[path] = self.lines[path], lines
        return before

    def options(self, path):
        want, args = self.lines[path], []
        if self.draw.random() < 0.3:
            args += ["--dedup", self.draw.choice(["auto", "exact", "chunk", "off"])]
        elif self.draw.random() < 0.2:
            args += ["--compress", "zstd"]
        elif self.draw.random() < 0.15:
            args += ["--store", "reference"]
        if self.draw.random() < 0.2:
            limit = self.draw.randrange(1, len(want) + 1)
            args += ["--limit", str(limit)]
            want = want[:limit]
        if self.draw.random() < 0.2:
            args += ["--verify"]
        return [want], args

    def step(self):
        path = self.draw.choice(self.inputs)
        kind = self.draw.choices(["damage", "edit", "race", "kill", "edit under", "damage under"], [8, 4, 3, 2, 3, 2])[0]
        self.counts[kind] += 1
        self.last = kind
        if kind == "damage":
            for _ in range(self.draw.choice([1, 1, 1, 2, 5])):
                self.damage()
        elif kind == "edit":
            self.edit(path)
        elif kind in ("race", "kill"):
            self.crowd(path, kill=kind == "kill")
        elif kind == "edit under":
            before = self.lines[path]
            timer = threading.Timer(self.draw.random() * 0.03, lambda: self.edit(path))
            timer.start()
            # Compared once the edit is over: on a busy machine the run may end before the thread that edits has said what it did.
            self.replay(path, Either(before, lambda: (timer.join(), self.lines[path])[1]), may_refuse=True)
            timer.join()
        elif kind == "damage under":
            # What is damaged under a run is told, or was not yet, or no longer, looked at.
            timer = threading.Timer(self.draw.random() * 0.03, self.damage)
            timer.start()
            self.replay(path, [self.lines[path]], may_refuse=True)
            timer.join()
        wants, args = self.options(path)
        self.replay(path, wants, *args)

    def crowd(self, path, kill):
        """Builds, removals, collections and checks at once, some of them killed."""
        verbs = [["build", path, "--format", "raw_payload"], ["build", path, "--format", "raw_payload", "--compress", "zstd"], ["cache", "gc", "--max-size", "0"],
                 ["cache", "verify"], ["cache", "gc"], ["build", self.inputs[0], "--format", "raw_payload", "--dedup", "off"]]
        crowd = [self.start(*self.draw.choice(verbs)) for _ in range(4)]
        if kill:
            time.sleep(self.draw.random() * 0.04)
            for process in crowd[:2]:
                process.send_signal(signal.SIGKILL)
        else:
            wants, args = self.options(path)
            self.replay(path, wants, *args)
        for process in crowd:
            process.communicate(timeout=60)

    def clean(self):
        for path in self.inputs:
            self.replay(path, [self.lines[path]], "--verify")
        assert subprocess.run([self.binary, "cache", "gc"], env=self.env, capture_output=True).returncode == 0
        bad = subprocess.run([self.binary, "cache", "verify"], env=self.env, capture_output=True, text=True)
        if bad.returncode:
            # Entries that were damaged and not used since; one that points into an edited input is no good either.
            keys = [line.split()[0] for line in bad.stdout.splitlines() if not line.endswith("good")]
            assert subprocess.run([self.binary, "cache", "rm", *keys], env=self.env, capture_output=True).returncode == 0
        final = subprocess.run([self.binary, "cache", "verify"], env=self.env, capture_output=True, text=True)
        assert final.returncode == 0, final.stdout + final.stderr
        left = [name for name in os.listdir(self.cache) if ".tmp." in name]
        assert not left, left


class Either:
    """The bodies of before an edit, or those of after it, as they are when they are asked for."""

    def __init__(self, before, after):
        self.before, self.after = before, after

    def __iter__(self):
        return iter([self.before, self.after()])

    def __getitem__(self, _):
        return self.after()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", default="target/release/ringload")
    ap.add_argument("--dir", help="where inputs and caches go")
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    attack = Attack(args)
    begun, steps = time.monotonic(), 0
    while time.monotonic() - begun < args.seconds:
        attack.step()
        steps += 1
        if steps % 200 == 0:
            attack.clean()
    attack.clean()
    print(json.dumps({"seconds": round(time.monotonic() - begun), "steps": steps, "wrong": 0, **attack.counts}))
    shutil.rmtree(attack.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
