"""The staff of a run, and the users whose accounts end.

`plans`: the actions of members and users. `members`: a member who logs in and acts. `finance`,
`support` and `operators`: the actions of each role. `leavers`: users who close their accounts, and
export them. `books`: rules about the log, second persons, closed and erased accounts. `house`: all
of it.
"""
