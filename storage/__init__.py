"""The only room that knows SQL: engines, transactions, migrations, queries by aggregate."""
