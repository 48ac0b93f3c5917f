"""Faults of the exits that are put into the product; see `mutants`. Found best with `--exits`.

Each has its name, its module, the text there, and the text instead.
"""

EXIT_MUTANTS = (
    (
        "exits: a buyer leaves through its own device",
        "proxyd.exits.choosing.wish",
        "            and entry.owner_id != self.owner_id\n",
        "",
    ),
    (
        "exits: an exit carries for less than its owner wants",
        "proxyd.exits.attached.attachments",
        "        attached.terms.set_price(self._admission.least_price(grant, attached.place))\n",
        "        attached.terms.set_price(0)\n",
    ),
    (
        "exits: a device stays attached where it was when it attaches anew",
        "proxyd.exits.attached.attachments",
        "        self.displace(grant.device_id)\n",
        "",
    ),
    (
        "exits: of two nodes with a device neither lets go of it",
        "proxyd.exits.nodes.mesh",
        "                self.hub.displace(device_id)  # calls `gone`, which comes back here\n",
        "",
    ),
    (
        "exits: the end of an attachment is not announced",
        "proxyd.exits.nodes.mesh",
        "        self.peers.send(Gone(attached.device_id))\n",
        "",
    ),
    (
        "exits: a new link is not told of the exits here",
        "proxyd.exits.nodes.mesh",
        "        self._tasks.spawn(self._announce(link))\n",
        "",
    ),
    (
        "exits: nodes do not agree on the exit of a label",
        "proxyd.exits.dialling.dial",
        "            return labels.must_ask(self._wants, self._session.id)\n",
        "            return False\n",
    ),
    (
        "exits: the places of a failed dial stay taken",
        "proxyd.exits.dialling.dial",
        "        place, self._place = self._place, None\n        if place is not None:\n",
        "        place, self._place = self._place, None\n        if False:\n",
    ),
    (
        "exits: a borrower's last report is not subtracted",
        "proxyd.exits.nodes.lending",
        "        loan.carrying(0, loan.size)\n",
        "",
    ),
    (
        "exits: a pool that is closed keeps its part of the budget",
        "proxyd.exits.attached.pool",
        "        self._budget.wanted -= self._asked\n",
        "",
    ),
    (
        "exits: the share of an exit counts no refund",
        "proxyd.metering.exit_share",
        "            self.used -= size\n",
        "            pass\n",
    ),
    (
        "exits: a strict label moves like any other",
        "proxyd.exits.choosing.directory",
        "        if wants.strict:\n            return Missing.EXIT_LOST\n",
        "",
    ),
    (
        "exits: a label ends before its lifetime is over",
        "proxyd.exits.choosing.directory",
        "        if binding is None or wish.now >= binding.until:\n",
        "        if binding is None or wish.now >= binding.until - 50:\n",
    ),
)
