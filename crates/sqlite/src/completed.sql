-- The second file, `<file>-done`: it stays when the first one is begun anew, as at each boot.
-- Comments stand outside of the statements, because SQLite keeps the statements in the file.

-- One row: the three files that belong together, the boot that uses them, and the generation of the first file whose clients may
-- write here. Each transaction that writes counts in `writes`, so a log always says of which files it is.
CREATE TABLE meta (
    files TEXT NOT NULL,
    boot TEXT NOT NULL,
    generation INTEGER NOT NULL,
    writes INTEGER NOT NULL
) STRICT;

-- One row for each name whose work is done. `at` and `wall` are milliseconds of the wall clock. A row ends at `until`, nanoseconds of
-- CLOCK_BOOTTIME, in the boot in which it was written, and at `wall` in any other; where both are NULL it counts for ever. `fire` is
-- an unsigned number, of which SQLite has the same bits signed.
CREATE TABLE done (
    name TEXT NOT NULL PRIMARY KEY,
    claim TEXT NOT NULL,
    token INTEGER NOT NULL,
    label TEXT NOT NULL,
    at INTEGER NOT NULL,
    boot TEXT NOT NULL,
    until INTEGER,
    wall INTEGER,
    fire INTEGER NOT NULL,
    result TEXT,
    is_cut INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ends ON done (boot, until) WHERE until IS NOT NULL;
CREATE INDEX walls ON done (wall) WHERE wall IS NOT NULL;
