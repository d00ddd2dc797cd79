-- Everything that the store keeps, in milliseconds: `until` of CLOCK_BOOTTIME, `since` of the wall clock.

-- The boot to which those times belong, and the last fencing token.
CREATE TABLE meta (boot TEXT NOT NULL, token INTEGER NOT NULL) STRICT;

-- The lines of all names, each in the order of `seq`: holders, which have a token, and waiters behind them.
CREATE TABLE place (
    seq INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    claim TEXT NOT NULL UNIQUE,
    fifo INTEGER NOT NULL,    -- of its client: its bell and its life
    mode TEXT NOT NULL,
    n INTEGER NOT NULL,       -- permits taken, and how many there are; else 0
    permits INTEGER NOT NULL,
    label TEXT NOT NULL,
    ttl INTEGER NOT NULL,
    until INTEGER NOT NULL,   -- when its lease ends
    turns INTEGER NOT NULL,   -- how many tokens, from `token` on, are its own
    token INTEGER,
    since INTEGER NOT NULL
) STRICT;
CREATE INDEX line ON place (name, seq, token);
CREATE INDEX ends ON place (until);

-- Who wants to hear when the holder of a name, or the holder's label, changes.
CREATE TABLE observer (name TEXT NOT NULL, fifo INTEGER NOT NULL) STRICT;
CREATE INDEX observed ON observer (name);
