-- Everything that the store keeps. Times are nanoseconds of CLOCK_BOOTTIME, but for `since`: milliseconds of the wall clock.
-- Comments stand outside of the statements, because SQLite keeps the statements in the file.

-- One row: the three files that belong together, the boot to which those times belong, the number of this generation, until when
-- it grants nothing, the last fencing token, and the identity of the store. Files of builds without an identity get that column when
-- they are opened.
CREATE TABLE meta (
    files TEXT NOT NULL,
    boot TEXT NOT NULL,
    generation INTEGER NOT NULL,
    quiet INTEGER NOT NULL,
    token INTEGER NOT NULL,
    store TEXT
) STRICT;

-- One row for each client and TTL, however many places it has: renewing is one update. `fifo`, `dev` and `ino` are the client's
-- FIFO, for its notifications and its life; `pid` is for people. A hold that was given back, and lapses by itself, has a session of
-- its own: its number, and that of no FIFO, is the place's below zero.
CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    fifo INTEGER NOT NULL,
    dev INTEGER NOT NULL,
    ino INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    ttl INTEGER NOT NULL,
    until INTEGER NOT NULL,
    UNIQUE (fifo, ttl)
) STRICT;
CREATE INDEX ends ON session (until);

-- The queues of all names, each in the order of `seq`: holders, which have a token, and waiters behind them. `seq` is drawn from the
-- tokens: it is the token, if the claim was granted at once. `n` and `permits`: how many are taken, and how many there are. `turns`:
-- how many tokens, from `token` on, are its own. A lock that is free is taken in one page of this table, and given back in it: what
-- only waiters need has an index that holds no others. `floor`: what a waiter's token is to be at least. `once`: the fire of a
-- waiter whose work is done once, as a signed number; NULL for all others. Files of earlier builds get that column when such a
-- claim waits.
CREATE TABLE place (
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,
    claim TEXT NOT NULL,
    session INTEGER NOT NULL,
    mode TEXT NOT NULL,
    n INTEGER NOT NULL,
    permits INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    token INTEGER,
    label TEXT NOT NULL,
    since INTEGER NOT NULL,
    floor INTEGER NOT NULL DEFAULT 0,
    once INTEGER,
    PRIMARY KEY (name, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX waiting ON place (name, session) WHERE token IS NULL;
CREATE TRIGGER lapsed AFTER DELETE ON place WHEN OLD.session < 0 BEGIN
    DELETE FROM session WHERE id = OLD.session;
END;

-- The clients that are notified when the holder of a name, or the holder's label, changes.
CREATE TABLE observer (name TEXT NOT NULL, fifo INTEGER NOT NULL, dev INTEGER NOT NULL, ino INTEGER NOT NULL) STRICT;
CREATE INDEX observed ON observer (name);
