"""A PostgreSQL of our own for users who give no DSN: found in a wheel, run as a plain account, reached by a socket."""
