"""What several tests share: one line a file, by what a test needs. Each says more at its top.

A story from beginning to end
    story: buys, connects, and asks what was used, over a whole daemon
    books: balances, holds and refusals of a market without a network
    waiting: waits for a condition, never for a time
    aside: runs a coroutine to its end in a thread
    once: makes something for all tests once, however many processes run them

The daemon
    service: a whole daemon in the test's own event loop, with a client for its API
    process: a daemon as a process of its own, its API, and the operator's commands
    forked: forks such processes from one that has imported all they need
    downloads: clients that read through a daemon until they are cut
    patroni: three machines with Patroni, each in namespaces of its own
    outage_load: traffic of customers while the database fails over, and its figures
    member: the program of such a process that shares its database with others
    supervisor: a daemon as systemd runs it: held sockets, notifications, restarts
    buyer: a process that sells sessions, and the programs that fetch through it
    market: the marketplace without a network, with a clock that tests set
    receiver: a server that is told of events by webhooks
    events: what users of such a marketplace were told
    jobs: jobs of such a marketplace, and devices that do them
    work: jobs that say what is to run, and devices that ask for them
    apps: the door of apps, and jobs that listen behind it
    app_story: a daemon with apps, a device, and jobs that listen
    artifacts: files of jobs over HTTP, sent by people and by devices
    exits: devices as exits of such a marketplace, and sessions that leave through them
    owner: the owner of a wire protocol, without sockets
    epoll: a set of sockets that takes no more
    small: a small checkout that compiles in seconds
    descriptors: the descriptors that the daemon holds in the test's own process
    two_processes: a daemon of two processes in the test's own event loop, with exits
    canaries: pages that everybody gets alike, and exits that lie about them
    exit_siege: the tricks of one hostile buyer against the exits of a market
    exit_device: a device that carries connections as a test wants it, and where it attaches
    declared: holds every answer of a test against the OpenAPI document
    both_engines: the plugin that runs the tests of the marketplace on both engines where needed
    failures: the plugin that writes the failed tests of a run to a file
    leftovers: the plugin that reports leftovers of a failed test with that test
    time_limit: the plugin that ends a test which takes too long
    clock: a wall clock that tests set
    cost: how much of the processor code takes

Exits
    exit_datagrams: how a device of a test carries datagrams
    exit_daemon: the daemon's side of exits, over TLS, that judges nothing
    exit_api: the API that an exit's agent asks for the terms
    exit_process: agents as processes of their own, beside a daemon that is one
    exit_wire: a wire between exits and their daemon that counts by key, and outlives both
    linked: nodes that lend one another exits, over links in memory
    mesh: several daemons with exits on one PostgreSQL
    exit_agent: the program of an agent with a judge of its guard switched off
    home: a home in network namespaces, with a sniffer on the device
    pythons: the Pythons that the program for devices is run on

Workers
    archives: archives of a hostile stranger, made up from a seed
    trees: trees of folders that no path reaches the end of
    engines: container engines with storage of their own, and images that are made here
    registry: registries of images on loopback: a real one, and one that lies
    slurm: a real Slurm with one node, in a folder of its own
    around: what is around a sandbox while the battery runs in it

Clients and targets
    socks: a SOCKS5 client over asyncio, step by step
    datagrams: UDP sockets, and a client of UDP ASSOCIATE
    conversations: made-up conversations, the same bytes for the same number
    targets: servers on the test's event loop that count bytes
    threads: servers in threads, for clients that have no event loop
    keyed: a target and a client that count each transfer at both ends
    ports: ports at which nobody answers, and such as a program may listen on
    tls: certificates, and connections over TLS whose bytes are counted
    browser: a Chromium, driven by its DevTools protocol
    axe: what is wrong with a page for who cannot see, hear or point well
    console: pages of the console in it, for somebody who is logged in
    proxied_browser: a Chromium that fetches through a proxy with credentials
    siege: what one address can do to the API

Jobs
    worker_market: a marketplace as an agent sees it, that a test can stop and start
    worker_process: the agent as a process of its own, beside such a marketplace
    crash_site: a daemon, its database and devices that work, all of which a test can kill
    worker_agent: the program of an agent that kills itself in a state
    outward: ways out of a device, which lead to this machine or not
    fetching_device: the program of an agent that fetches inputs from addresses of strangers
    battery: what a job must not be able to do, for every kind of sandbox
    probe: the program that tries it from within
    bombs: programs that misbehave for as long as they may
    guest: a machine in QEMU with control groups of the second version
    kubernetes: a real Kubernetes with one node, in a folder of its own
    launching: starts what an executor has made ready, in the place of the supervisor

What the daemon talks to
    postgres: a PostgreSQL server, one database a test
    postgres_cluster: a primary and its standby, behind wires that a test controls
    drill: traffic on daemons while their database fails
    silent: a server that takes connections and never answers
    memory: folders in memory, for servers and tests
    rewriting: the plugin with which `make test` imports every file of tests once
    sqlite: SQLite files of the present schema
    forwarder: a wire to a database that a test can freeze
    nodes: rows of other daemons of a cluster
    shared_writer: a process that writes to a shared SQLite database
    statements: counts the statements of a unit of work
    plans: how much a statement looks at
    grown: a market of any size
    names: resolvers that ask nobody
    nameserver: a DNS server on loopback
    mailbox: an SMTP server that keeps e-mails
    metering: a meter over a market, and what it is asked
    releases: holds a shim to the release of a library that it was compared with
    model: a language model without a network
    upstream: a language model over HTTP
    pictures: photos and broken files, from seeds
    mounts: small file systems, which can be full
    mmdb: files of places, of a few networks

A machine
    machine: a Debian in a folder that boots with systemd
    installed: the service, installed on it
"""
