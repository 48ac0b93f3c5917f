"""Has two or three units meet on a real PostgreSQL, statement by statement, in many orders."""

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter
from random import Random

from support.database import postgres

from tests.sim.stepped.site import Site
from tests.sim.stepped.trials import Trials
from tests.sim.stepped.units import ACROSS, PAIRS, Meeting, Three, threes


def main() -> int:
    """Run trials; return the exit status."""
    parser = argparse.ArgumentParser("make sim-steps", description=__doc__)
    parser.add_argument("--count", type=int, default=10, help="orders of each pair")
    parser.add_argument("--seed", type=int, help="only this order")
    parser.add_argument("--pair", default="", help="only pairs whose name has this text")
    parser.add_argument("--across", type=int, help="so many pairs of different topics, drawn")
    parser.add_argument("--three", type=int, help="so many meetings of three units, drawn")
    options = parser.parse_args()
    logging.disable()  # units report much that is right in an order that is drawn
    pairs: list[Meeting] = [each for each in (*PAIRS, *ACROSS) if options.pair in str(each)]
    if options.pair.count(" / ") == 2:
        topic, _, names = options.pair.partition(": ")
        pairs = [Three(topic, *names.split(" / "))]
    elif options.across is not None:
        pairs = Random(options.seed or 0).sample(ACROSS, min(options.across, len(ACROSS)))
    elif options.three is not None:
        pairs = list(threes(options.three, options.seed or 0))
    elif not options.pair:
        pairs = list(PAIRS)
    seeds = range(options.count) if options.seed is None else [options.seed]
    with postgres.server() as server:
        template = postgres.TEMPLATE
        return asyncio.run(_run(server, template, pairs, seeds))


async def _run(
    server: str, template: str, pairs: "list[Meeting]", seeds: "range | list[int]"
) -> int:
    failed: Counter[Meeting] = Counter()
    began, done, waits, deadlocks = time.perf_counter(), 0, 0, 0
    async with (
        postgres.database(server, "stepped", template=template) as url,
        Site.open(url) as site,
    ):
        trials = await Trials.of(site)
        for seed in seeds:
            for pair in pairs:
                trial = await trials.run(pair, seed)
                done += 1
                waits += trial.waits > 0
                deadlocks += trial.deadlocks
                if trial.failures:
                    failed[pair] += 1
                    if failed[pair] == 1:
                        print(trial.report(), flush=True)
    for pair, count in failed.items():
        print(f"failed in {count} of {len(seeds)} orders: {pair}")
    print(
        f"{done} trials of {len(pairs)} meetings in {time.perf_counter() - began:.0f} s: a unit"
        f" waited for another one in {waits}, {deadlocks} deadlocks, {len(failed)} meetings failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
