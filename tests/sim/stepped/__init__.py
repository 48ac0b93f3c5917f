"""Units of two nodes on a real PostgreSQL, statement by statement in the order of a seed.

The simulated store runs a unit as a whole, so it cannot show what read committed permits between
two statements of two units. Here each statement of a unit waits for its turn, and exactly one unit
makes its next one. A unit that waits for a row of another one is found by the server's word.

`units` is a table of the units that lock rows, and of the rows that they share; `world` has these
rows. `site` gives each trial the same rows, and reads all of them afterwards. `trials` compares the
end of a trial with the ends of the same two or three units one after the other.
"""
