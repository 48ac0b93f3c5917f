"""The engines: a store on SQLite or PostgreSQL, its migrations, backup and errors."""
