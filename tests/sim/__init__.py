"""A deterministic simulation of the marketplace: real code, virtual time, drawn faults.

`loop`: virtual time, and one event loop for each process. `store`: the database, with delays and
losses on the way to it. `process`: a daemon without sockets. `clients`: buyers, and clients of the
proxy. `usage`: buyers that read their usage. `jobs`: buyers of work, and devices. `acts`: all
other actors of the marketplace: `deploys`, `samples`, `webhooks`, `followers` of events, `people`,
their `letters` and keys, photos of good `deeds`, and `files` with logs in a `folder`, from
`file_devices`. `money`: payers, and a bank that lies. `halts`: sessions that people and rules halt.
`staff`: the members of the staff, and accounts that end. `supply`: the view of the devices that ask
for work. `faults`: the faults of a run, as data. `focus`: runs with one subject. `checks`: rules
that must hold; `labels`: those of the labels of exits. `scenario`: all plans that are drawn from a
seed. `run`: one seed, from start to end. `shrink`: fewer faults for the same failure. `mutants`,
`job_mutants`, `exit_mutants`, `money.mutants` and `staff_mutants`: faults in the product that seeds
must find.

Run it by `python -m tests.sim SEED`; CONTRIBUTING.md has the rest.
"""
