"""A deterministic simulation of the marketplace: real code, virtual time, drawn faults.

`loop`: virtual time, and one event loop for each process. `store`: the database, as the processes
reach it. `process`: a daemon without sockets. `clients`: buyers. `faults`: things that go wrong, as
data. `focus`: runs with one subject. `acts`: what happens beside sessions and plain `jobs`:
`deploys`, `samples`, `webhooks`, `followers` of events, `people`, their `letters` and keys.
`checks`: rules that must hold. `scenario`: all that is drawn from a seed. `run`: one seed, from
start to end. `shrink`: fewer faults for the same failure. `mutants` and `job_mutants`: faults of
the product, to be found.

Run it by `python -m tests.sim SEED`; CONTRIBUTING.md has the rest.
"""
