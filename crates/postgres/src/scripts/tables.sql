-- Everything that the store keeps. Columns are only ever added, in `columns.sql`: clients of several versions use one schema.

-- One row for each name in use. `seq`: the last place given. `head`: no place stands below it, so that a search begins there and not
-- among what was deleted. `size`: how many places there are. `token`: the last one given. Half of a minute after its last use a row
-- without places is swept away, and its token goes into the floor.
CREATE TABLE IF NOT EXISTS leasehold.lines (
    name text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL,
    head bigint NOT NULL,
    size integer NOT NULL,
    token bigint NOT NULL,
    used timestamptz NOT NULL
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = off);

-- The places of each name in their order: holders, which have a token, and waiters. `mode`: 0 exclusive, 1 shared, 2 permits, of which
-- it takes `n` of `of`. `client`: its channel, '' for none. `sent`: the client's clock when it sent the request that set `until`; `said`:
-- the same of the request that set `label`. `parted`: it ends at `until`, whatever comes. `floor`:
-- what a waiter's token is to be at least; `once`: the fire of work that is done once, NULL for a lock. `until`, `token`, `mode`, `label` and `sent` are
-- in no index: so a renewal is a HOT update, and passes a transaction that has the row FOR KEY SHARE.
CREATE TABLE IF NOT EXISTS leasehold.place (
    name text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    claim uuid NOT NULL UNIQUE,
    mode smallint NOT NULL,
    n bigint NOT NULL,
    of bigint NOT NULL,
    turns integer NOT NULL,
    token bigint,
    client text COLLATE "C" NOT NULL,
    label bytea NOT NULL,
    since timestamptz NOT NULL,
    ttl bigint NOT NULL,
    until timestamptz NOT NULL,
    sent bigint NOT NULL,
    said bigint NOT NULL,
    PRIMARY KEY (name, seq)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = off);

-- Which clients are notified when the holder of a name, or its label, changes.
CREATE TABLE IF NOT EXISTS leasehold.observer (
    name text COLLATE "C" NOT NULL,
    client text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (name, client)
);

-- Work that is done once, one row for each name: which claim has done it, under the hold with which token, and of which fire. `until`: the end of its
-- keep, NULL for none. It counts for claims whose fire is not greater. `cut`: the result was longer.
CREATE TABLE IF NOT EXISTS leasehold.completion (
    name text COLLATE "C" PRIMARY KEY,
    claim uuid NOT NULL,
    token bigint NOT NULL,
    label bytea NOT NULL,
    at timestamptz NOT NULL,
    until timestamptz,
    fire numeric(20, 0) NOT NULL,
    result text,
    cut boolean NOT NULL,
    UNIQUE (until, name)
) WITH (autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = off);

-- One row, from the first sweep on. `floor`: the greatest token of the names that were swept away. `swept`: when the last sweep began.
CREATE TABLE IF NOT EXISTS leasehold.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    floor bigint NOT NULL DEFAULT 0,
    swept timestamptz NOT NULL DEFAULT '-infinity'
);

-- The latest version of the verbs that is installed.
CREATE OR REPLACE FUNCTION leasehold.protocol() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT $PROTOCOL';
-- Which revision of all of this is installed: it rises with each correction.
CREATE OR REPLACE FUNCTION leasehold.revision() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT $REVISION';
