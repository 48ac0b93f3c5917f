"""`proxyd` as one process of several on a database: `python -m tests.support.member serve`.

On SQLite nobody has claimed the database for them, as the one that starts them does otherwise. On
PostgreSQL nothing is different.
"""

import sys
from functools import partial

from proxyd import build
from proxyd.__main__ import main
from storage.open import open_store

if __name__ == "__main__":
    build.open_store = partial(open_store, is_shared=True)
    sys.exit(main())
