"""The only room that knows SQL: engines, transactions, migrations, one file of queries per aggregate."""
