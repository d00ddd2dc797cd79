-- Everything that the store keeps. Times are nanoseconds of CLOCK_BOOTTIME, but for `since`: milliseconds of the wall clock.

-- The three files that belong together, the boot to which those times belong, the number of this generation, until when it
-- grants nothing, and the last fencing token.
CREATE TABLE meta (
    files TEXT NOT NULL,
    boot TEXT NOT NULL,
    generation INTEGER NOT NULL,
    quiet INTEGER NOT NULL,
    token INTEGER NOT NULL
) STRICT;

-- One row for each client and TTL, however many places it has: renewing is one update. A hold that was given back, and lapses
-- by itself, has one of its own: its number, and that of no FIFO, is the place's below zero.
CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    fifo INTEGER NOT NULL,  -- in the name of the client's FIFO: its notifications and its life
    dev INTEGER NOT NULL,
    ino INTEGER NOT NULL,
    pid INTEGER NOT NULL,   -- for people
    ttl INTEGER NOT NULL,
    until INTEGER NOT NULL,
    UNIQUE (fifo, ttl)
) STRICT;
CREATE INDEX ends ON session (until);

-- The queues of all names, each in the order of `seq`: holders, which have a token, and waiters behind them.
CREATE TABLE place (
    seq INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    claim TEXT NOT NULL UNIQUE,
    session INTEGER NOT NULL,
    mode TEXT NOT NULL,
    n INTEGER NOT NULL,       -- of `permits`: how many are taken, and how many there are
    permits INTEGER NOT NULL,
    turns INTEGER NOT NULL,   -- how many tokens, from `token` on, are its own
    token INTEGER,
    label TEXT NOT NULL,
    since INTEGER NOT NULL
) STRICT;
CREATE INDEX queue ON place (name, seq, token);
CREATE INDEX mine ON place (session, name);
CREATE TRIGGER lapsed AFTER DELETE ON place WHEN OLD.session < 0 BEGIN
    DELETE FROM session WHERE id = OLD.session;
END;

-- The clients that are notified when the holder of a name, or the holder's label, changes.
CREATE TABLE observer (name TEXT NOT NULL, fifo INTEGER NOT NULL, dev INTEGER NOT NULL, ino INTEGER NOT NULL) STRICT;
CREATE INDEX observed ON observer (name);
