"""Command line of the simulation."""

import argparse
import gc
import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path

from tests.sim import mutants, seeds
from tests.sim.acts import SUBJECTS
from tests.sim.focus import FOCUSES
from tests.sim.run import Outcome, run
from tests.sim.scenario import Scenario, scenario_of
from tests.sim.shrink import shrink

LINES = 40
MUTANT_SEEDS = 1_000
PROGRESS_SEEDS = 100
# Of one process: memory grows a little with each.
PROCESS_SEEDS = 500
# Objects between two looks for garbage: at the default of 700 they are a tenth of the time.
NEW_OBJECTS = 10_000
# The subject of runs in which devices attach.
EXITS = "exits"
ROOT = Path(__file__).parent.parent.parent


def main(parser: argparse.ArgumentParser) -> int:
    """Run the command of the arguments; return the exit status."""
    parser.add_argument("seed", type=int, nargs="?", default=1, help="the first seed")
    parser.add_argument("--trace", action="store_true", help="print every line")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller run that fails")
    parser.add_argument("--count", type=int, default=1, help="number of seeds, from the first one")
    parser.add_argument("--seconds", type=float, help="run new seeds on all cores for this time")
    parser.add_argument("--until", type=float, help="no new seed from this Unix time on")
    parser.add_argument("--fixed", action="store_true", help="the fixed and the failed seeds")
    parser.add_argument("--brief", action="store_true", help="no slow ones of these")
    parser.add_argument(
        "--mutants", nargs="?", const="", help="run the mutants whose name contains this text"
    )
    parser.add_argument("--most", type=int, default=MUTANT_SEEDS, help="most seeds for each mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--digests", action="store_true", help="print the digest of each seed")
    parser.add_argument("--go-on", action="store_true", help="continue after a failure")
    parser.add_argument("--only", help="only these kinds of faults, with commas between them")
    parser.add_argument("--mode", choices=("solo", "processes", "nodes"))
    parser.add_argument(
        "--focus", choices=("none", EXITS, *FOCUSES, *SUBJECTS), help="only this subject"
    )
    parser.add_argument("--subjects", action="store_true", help="seeds of each subject in turn")
    parser.add_argument("--same-as", help="compare the digest with that of this other Python")
    parser.add_argument("--exits", action="store_true", help="devices attach in each run")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--broken-seconds", type=float, help="time in which faults hold")
    options = parser.parse_args()
    if options.mutants is not None:
        return _mutants(options)
    if options.seconds is not None:
        return _new(options)
    if options.fixed:
        plain = [(seed, options.focus) for seed in (*seeds.FIXED, *seeds.FAILED)]
        runs = [*plain, *seeds.FIXED_OF, *seeds.FAILED_OF]
        slow = seeds.SLOW if options.brief else ()
        return _several([each for each in runs if each[0] not in slow], options)
    if options.shrink:
        print(report(shrink(_scenario(options.seed, options.focus, options), print)))
        return 1
    numbers = range(options.seed, options.seed + options.count)
    if options.subjects:
        subjects = (None, EXITS, *FOCUSES, *SUBJECTS)
        return _several([(seed, each) for seed in numbers for each in subjects], options)
    if options.same_as is not None:
        return _compare(options)
    return _several([(seed, options.focus) for seed in numbers], options)


def _scenario(seed: int, focus: str | None, options: argparse.Namespace) -> Scenario:
    only = None if options.only is None else frozenset(options.only.split(","))
    return scenario_of(
        seed,
        nodes=options.nodes,
        clients=options.clients,
        sessions=options.sessions,
        seconds=options.broken_seconds,
        only=only,
        mode=options.mode,
        focus=None if focus == EXITS else focus,
        exits=options.exits or focus == EXITS,
    )


def _several(runs: "list[tuple[int, str | None]]", options: argparse.Namespace) -> int:
    """Run seeds, each with its subject, and print what fails."""
    began, failed, virtual, done = time.process_time(), [], 0.0, 0
    digest = blake2b(digest_size=8)
    gc.freeze()  # the modules live on, so that no collection looks at them
    gc.set_threshold(NEW_OBJECTS)
    for seed, focus in runs:
        if options.until is not None and time.time() >= options.until:
            break
        outcome = run(_scenario(seed, focus, options), is_loud=options.trace)
        virtual += outcome.seconds
        done += 1
        digest.update(outcome.digest.encode())
        if outcome.failures:
            failed.append(seed)
            print(report(outcome, is_brief=options.trace), flush=True)
            if not options.go_on:
                break
        elif options.digests or len(runs) == 1:
            print(f"seed {seed}: {outcome.scenario}: digest {outcome.digest}")
        if done % PROGRESS_SEEDS == 0:
            print(f"{done} seeds so far, {len(failed)} failed; {seed} was the last", flush=True)
    took = max(time.process_time() - began, 1e-9)
    print(
        f"{done} seeds, {len(failed)} failed {failed or ''},"
        f" {done / took:.1f} seeds and {virtual / took:.0f} virtual seconds"
        f" per second of a processor, digest of all {digest.hexdigest()}"
    )
    return 1 if failed else 0


def report(outcome: Outcome, *, is_brief: bool = False) -> str:
    """Return the report of a run: faults, last lines, failures and digest."""
    scenario = outcome.scenario
    lines = [f"seed {scenario.seed}: {scenario}"]
    lines += [f"  fault  {each}" for each in scenario.faults]
    if not is_brief:
        lines += [f"  | {each}" for each in outcome.lines[-LINES:]]
    lines += [f"  failed {each}" for each in outcome.failures]
    if outcome.error is not None:
        lines += traceback.format_exception(outcome.error)
    lines.append(f"  digest {outcome.digest}; replay: python -m tests.sim {scenario.seed} --trace")
    return "\n".join(lines)


def _new(options: argparse.Namespace) -> int:
    """Run new seeds in several processes, until the time is over or one fails."""
    first = time.time_ns() // 1_000_000_000 * 1_000_000
    print(f"new seeds from {first} on, in {options.jobs} processes")
    command = [sys.executable, "-m", "tests.sim", "--count", str(PROCESS_SEEDS)]
    running: list[subprocess.Popen[str]] = []
    until = time.time() + options.seconds
    total, failed = 0, 0
    while running or time.time() < until:
        while len(running) < options.jobs and time.time() < until and not failed:
            arguments = [str(first), "--until", str(until), *(["--exits"] if options.exits else [])]
            running.append(
                subprocess.Popen(
                    [*command, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
                )
            )
            first += PROCESS_SEEDS
        for process in tuple(running):
            try:
                out, _ = process.communicate(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
            running.remove(process)
            total += int(out.splitlines()[-1].split()[0])
            if process.returncode:
                failed += 1
                print(out, flush=True)
        if failed and not running:
            break
    print(f"{total} seeds, {failed} failed")
    return 1 if failed else 0


def _compare(options: argparse.Namespace) -> int:
    """Run the seeds by this and by another Python; return 1 if their digests differ."""
    digests = set()
    for python in (sys.executable, options.same_as):
        process = subprocess.run(
            [python, "-m", "tests.sim", str(options.seed), "--count", str(options.count)],
            env=os.environ | {"PYTHONPATH": str(ROOT / "client")},
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
        last = (process.stdout.splitlines() or ["no output"])[-1]
        print(f"{python}: {last}", flush=True)
        digests.add(last.rpartition(" ")[2])
    return 0 if len(digests) == 1 else 1


def _mutants(options: argparse.Namespace) -> int:
    """Print the seeds that each mutant needs; a survivor is a failure, but for equivalent ones."""
    chosen = [each for each in mutants.MUTANTS if options.mutants in each.name]
    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:  # each thread waits for a process
        for line, has_survived in pool.map(partial(_mutant, options=options), chosen):
            print(line, flush=True)
            survivors += has_survived
    print(f"{survivors} survive")
    return 1 if survivors else 0


def _mutant(mutant: mutants.Mutant, options: argparse.Namespace) -> tuple[str, bool]:
    """Run a mutant; return the line about it, and whether it survives."""
    if mutant.equivalent and mutant.name != options.mutants:
        return f"    = {mutant.name}: {mutant.equivalent}", False
    began = time.perf_counter()
    subject = options.focus or mutant.subject
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.sim",
            str(options.seed),
            "--count",
            str(options.most),
            *(("--focus", subject) if subject and subject != EXITS else ()),
            *(("--exits",) if options.exits or subject == EXITS else ()),
        ],
        env=os.environ | {mutants.VARIABLE: mutant.name},
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=False,
    )
    took = time.perf_counter() - began
    lines = process.stdout.splitlines()
    count = lines[-1].split()[0] if lines else "?"
    reasons = [each.strip() for each in lines if each.startswith("  failed ")]
    line = f"{subject:>7} {took:6.1f} s  {mutant.name}"
    if process.returncode == 1:
        return f"{count:>5} {line}: {(reasons or lines[-1:])[0]}"[:200], False
    return f"    - {line}: survives {count} seeds", True
