"""The reverse proxy: servers in jobs, reached by browsers and programs from outside.

It has a listener of its own and never the API's origin: the author of a job controls its answers. A
request is let in by the key of its app, and answered by the job itself, through a stream that the
job's device opens.
"""
