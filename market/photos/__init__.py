"""Photos: read, decoded within bounds, and compared with earlier rewarded photos.

One endpoint needs this, to pay small rewards without paying for fakes and repetitions. It knows
nothing of the market but its refusals and `market.base.slots`; only `market.assistant.goodness` and
the route of photos use it.
"""
