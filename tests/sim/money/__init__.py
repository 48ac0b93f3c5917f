"""Money in and out of the simulated marketplace: payers, saved cards, and a bank that lies.

`plans`: all of it, as data. `template`: the database, with users of its own. `bank`: the truth
about payments, and the clients of the daemons, to which it lies. `payers`: users who pay, and the
notices about their payments. `payment_books`: rules about payments. `story`: all of these in a run.
"""
