-- Everything that the store keeps. Times are nanoseconds of CLOCK_BOOTTIME, but for `since`: milliseconds of the wall clock.

-- The boot to which those times belong, and the last fencing token.
CREATE TABLE meta (boot TEXT NOT NULL, token INTEGER NOT NULL) STRICT;

-- One row for each client and TTL, however many places it has: renewing is one update.
CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    fifo INTEGER NOT NULL,  -- in the name of the client's FIFO: its bell and its life
    dev INTEGER NOT NULL,
    ino INTEGER NOT NULL,
    pid INTEGER NOT NULL,   -- for people
    ttl INTEGER NOT NULL,
    until INTEGER NOT NULL,
    UNIQUE (fifo, ttl)
) STRICT;
CREATE INDEX ends ON session (until);

-- The lines of all names, each in the order of `seq`: holders, which have a token, and waiters behind them.
CREATE TABLE place (
    seq INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    claim TEXT NOT NULL UNIQUE,
    session INTEGER NOT NULL,
    mode TEXT NOT NULL,
    n INTEGER NOT NULL,       -- permits taken, and how many there are; else 0
    permits INTEGER NOT NULL,
    turns INTEGER NOT NULL,   -- how many tokens, from `token` on, are its own
    token INTEGER,
    label TEXT NOT NULL,
    since INTEGER NOT NULL
) STRICT;
CREATE INDEX line ON place (name, seq, token);
CREATE INDEX mine ON place (session, name);

-- Who wants to hear when the holder of a name, or the holder's label, changes.
CREATE TABLE observer (name TEXT NOT NULL, fifo INTEGER NOT NULL, dev INTEGER NOT NULL, ino INTEGER NOT NULL) STRICT;
CREATE INDEX observed ON observer (name);
