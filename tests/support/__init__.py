"""The parts that several tests share, in folders. The head of each file describes the file.

base: waiting, clocks, ports, folders and other small parts
plugins: plugins of pytest: engines, time limits, reports of failures and leftovers
database: SQLite and PostgreSQL for tests, wires to them, and their contents
targets: servers that a daemon or a device reaches: targets, name servers, mail, models
daemons: daemons in a test's event loop, as processes, and several on one database
clients: clients of the proxy and of the API, buyers, and hostile callers
market: a marketplace without a network: users, sessions, exits and jobs
payments: stand-ins for payment providers
exits: devices and agents of exits, and the daemons and networks around them
workers: agents of workers, sandboxes, container engines, and jobs that attack them
clusters: a real Kubernetes and a real Slurm with one node
console: the console in a browser
machines: machines, checkouts, and the installed service
outages: traffic while a database fails, and its figures
"""
