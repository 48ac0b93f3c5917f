"""Money in and out of the simulated marketplace: payers, saved cards, a bank that lies, payouts.

`plans`: all of it, as data. `template`: the database, with users of its own. `bank`: the true
payments, and clients for the daemons with lies about them. `payers`: users who pay, and the
notices about their payments. `earners`: users with earned money, and the staff that pays it out.
`senders`: the ways of payouts. `support`: a person who suspends users. `payment_books` and
`payout_books`: rules. `story`: all of these in a run. `mutants`: faults that seeds must find.
"""
