-- What the verbs share. Each verb plans its statements once per connection, for any parameters and without a scan of a whole table: statistics of
-- tables whose few rows change all the time say nothing. A place is searched by its claim, or by its name and number. With conditions on both, the
-- server takes either index, and the entries of a name are as many as the places that it has had since the last vacuum. `name || ''` is in no index.
-- Everything of the schema is called by its full name, here and in the verbs, and no argument leaves its type to be guessed: what
-- somebody else may have put into the schema is never found instead.
-- These functions are not for clients: they run with the rights of the verb that calls them. So the types of their
-- variables are named with their schemas: a client that executes one itself, under a search_path of its own, would choose them for its
-- whole session, and what a domain checks is executed with those rights.

-- What each verb begins with, and whether it may go on. A snapshot older than the wait for a lock would show the line as it was; an acknowledged
-- grant must survive a crash; and `statement_timeout` does not cover what a commit waits for. This one and `fits_1` are single expressions of
-- SQL, which the server puts in place of their calls.
CREATE OR REPLACE FUNCTION leasehold.enters_1(p_patience integer) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
        AND (current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) = 'on')
        AND set_config('lock_timeout', p_patience::text, true) IS NOT NULL
$$;

-- Whether a client of the store sends this. A role that may execute verbs is to leave nothing there that stops others, or ends the numbers of
-- tokens: these stay far below the greatest that any store can be raised to, unless the role may raise all of them anyway.
CREATE OR REPLACE FUNCTION leasehold.fits_1(p_name text, p_client text, p_turns integer, p_ttl bigint, p_label bytea, p_floor bigint)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        octet_length(p_name) BETWEEN 1 AND 2600 AND octet_length(p_client) <= 63 AND octet_length(p_label) <= 4096 AND p_turns BETWEEN 1 AND 1024
        AND p_ttl BETWEEN 1 AND 31622400000000 AND (p_floor IS NULL OR p_floor BETWEEN 0 AND 4503599627370496 OR p_floor BETWEEN 0 AND 4611686018427387904
            AND has_function_privilege(session_user, 'leasehold.raise_1(pg_catalog.int8, pg_catalog.int4)', 'EXECUTE')),
        false
    )
$$;

-- Refuses to go on in another isolation level, or with what no client of the store sends.
CREATE OR REPLACE FUNCTION leasehold.refuse_1(p_verb text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'leasehold needs READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    RAISE EXCEPTION 'an argument of % is out of its bounds', p_verb USING ERRCODE = 'LH004';
END $$;

-- Locks the line of this name. A new one begins behind the places that are there all the same, if somebody deleted the line alone. One of which
-- no place was given yet begins above the floor, which is read once no sweep can raise it for this name.
CREATE OR REPLACE FUNCTION leasehold.lock_1(p_name text, p_create boolean) RETURNS leasehold.lines LANGUAGE plpgsql AS $$
DECLARE
    l leasehold.lines;
BEGIN
    LOOP
        SELECT * INTO l FROM leasehold.lines t WHERE t.name = p_name FOR UPDATE;
        EXIT WHEN FOUND OR NOT p_create;
        INSERT INTO leasehold.lines AS t SELECT p_name, coalesce(max(p.seq), 0), 1, count(*),
                CASE WHEN max(p.token) IS NULL THEN 0 ELSE greatest(max(p.token + p.turns - 1), (SELECT m.floor FROM leasehold.meta m WHERE m.one)) END,
                clock_timestamp() FROM leasehold.place p WHERE p.name = p_name
            ON CONFLICT DO NOTHING RETURNING * INTO l;
        EXIT WHEN FOUND;
    END LOOP;
    IF l.token = 0 THEN
        l.token := coalesce((SELECT t.floor FROM leasehold.meta t WHERE t.one), 0);
    END IF;
    RETURN l;
END $$;

-- Removes a place. Where a renewal is at it, that is waited for; where a transaction of a user's pins it (`held`), it is over from now on,
-- and stays until that transaction ends: the answer is false.
CREATE OR REPLACE FUNCTION leasehold.remove_1(p_name text, p_seq bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM leasehold.place t WHERE t.name = p_name AND t.seq = p_seq FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        UPDATE leasehold.place t SET until = '-infinity' WHERE t.name = p_name AND t.seq = p_seq;
        PERFORM 1 FROM leasehold.place t WHERE t.name = p_name AND t.seq = p_seq FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    DELETE FROM leasehold.place t WHERE t.name = p_name AND t.seq = p_seq;
    RETURN true;
END $$;

-- Which transaction keeps a place whose lease has ended, in words behind its label: one that has its row, by the `xmax` of that. Null if
-- there is none, or if the owner of these functions may not know.
CREATE OR REPLACE FUNCTION leasehold.keeper_1(p_xmax xid) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    several pg_catalog.xid[];
    who pg_catalog.text;
BEGIN
    BEGIN
        several := ARRAY(SELECT m.xid FROM pg_get_multixact_members(p_xmax) m);
    EXCEPTION WHEN OTHERS THEN
        -- It is the number of one transaction.
        several := '{}';
    END;
    SELECT CASE WHEN l.pid IS NULL THEN format('prepared transaction %L', x.gid) ELSE format('open transaction of process %s', l.pid) END INTO who
        FROM pg_locks l LEFT JOIN pg_prepared_xacts x ON x.transaction = l.transactionid
        WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
            AND (l.transactionid = p_xmax OR l.transactionid = ANY (several))
        LIMIT 1;
    RETURN ' (its lease has ended; the ' || who || ' keeps it)';
EXCEPTION WHEN insufficient_privilege THEN
    RETURN NULL;
END $$;

-- How a claim is written in notifications.
CREATE OR REPLACE FUNCTION leasehold.hex_1(p_claim uuid) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT replace(p_claim::text, '-', '') $$;

-- The next token of a name: from the floor on, if there is one. The clock matters without one, and where no token is known, or was lost.
CREATE OR REPLACE FUNCTION leasehold.next_1(p_last bigint, p_floor bigint, p_now timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT greatest(p_last + 1, p_floor, CASE WHEN p_floor IS NULL OR p_last = 0 THEN (extract(epoch FROM p_now) * 1000000)::bigint END)
$$;

-- Under the lock of the line: removes the dead at its head, and grants to whom it is the turn of, in order, until one has to wait. A place
-- that is past its end, and locked by somebody else, counts as alive: its renewal is under way, or a user's transaction pins it.
-- Answers what the line is now, and who holds: how many, of which mode, how much of how much is taken, the first of them, when the
-- first of their leases ends; the first that waits; whether a holder changed; and the notifications to send.
CREATE OR REPLACE FUNCTION leasehold.settle_1(
    p_name text, p_quiet uuid, p_now timestamptz,
    INOUT l_head bigint, INOUT l_size integer, INOUT l_token bigint,
    OUT holders integer, OUT kind smallint, OUT taken bigint, OUT room bigint,
    OUT who_label bytea, OUT who_token bigint, OUT who_since timestamptz,
    OUT ends timestamptz, OUT waits bigint, OUT changed boolean, OUT channels text[], OUT payloads text[]
) LANGUAGE plpgsql AS $$
DECLARE
    p leasehold.place;
    ms CONSTANT interval := '1 millisecond';
    beyond bigint := l_head;
    first bigint;
BEGIN
    holders := 0; taken := 0; changed := false; channels := '{}'; payloads := '{}';
    FOR p IN SELECT * FROM leasehold.place t WHERE t.name = p_name AND t.seq >= l_head ORDER BY t.seq LOOP
        beyond := p.seq + 1;
        IF p.mode NOT BETWEEN 0 AND 2 THEN
            RAISE EXCEPTION 'a place has an unknown mode' USING ERRCODE = 'XX001';
        ELSIF p.until <= p_now THEN
            PERFORM 1 FROM leasehold.place t WHERE t.name = p_name AND t.seq = p.seq AND t.until <= p_now FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                DELETE FROM leasehold.place t WHERE t.name = p_name AND t.seq = p.seq;
                l_size := l_size - 1;
                changed := changed OR p.token IS NOT NULL;
                CONTINUE;
            END IF;
        ELSIF p.until > p_now + p.ttl * ms THEN
            -- The clock has stepped back, unless it was renewed since `p_now`.
            PERFORM 1 FROM leasehold.place t WHERE t.name = p_name AND t.seq = p.seq FOR NO KEY UPDATE SKIP LOCKED;
            IF FOUND THEN
                UPDATE leasehold.place t SET until = least(t.until, clock_timestamp() + t.ttl * ms)
                    WHERE t.name = p_name AND t.seq = p.seq RETURNING t.until INTO p.until;
            END IF;
        END IF;
        first := coalesce(first, p.seq);
        IF p.token IS NULL AND NOT (kind IS NULL OR kind = p.mode AND (
            p.mode = 1 OR p.mode = 2 AND taken + p.n <= least(room, p.of)
        )) THEN
            waits := p.seq;
            EXIT;
        END IF;
        IF p.token IS NULL THEN
            p.token := leasehold.next_1(l_token, p.floor, p_now);
            p.since := p_now;
            l_token := p.token + p.turns - 1;
            UPDATE leasehold.place t SET token = p.token, since = p.since WHERE t.name = p_name AND t.seq = p.seq;
            changed := true;
            IF p.client <> '' AND p.claim IS DISTINCT FROM p_quiet THEN
                channels := channels || p.client;
                payloads := payloads || format('granted %s %s %s %s %s %s', leasehold.hex_1(p.claim), p.seq, p.token, p.turns, p.sent, p.ttl);
            END IF;
        END IF;
        IF holders = 0 THEN
            who_label := p.label; who_token := p.token; who_since := p.since;
            IF p.until <= p_now THEN
                who_label := p.label || convert_to(coalesce((
                    SELECT leasehold.keeper_1(t.xmax) FROM leasehold.place t WHERE t.name = p_name AND t.seq = p.seq
                ), ''), 'UTF8');
            END IF;
        END IF;
        holders := holders + 1; kind := p.mode; taken := taken + p.n; room := least(room, p.of);
        ends := least(ends, CASE WHEN p.until <= p_now THEN p_now + 50 * ms ELSE p.until + 5 * ms END);
    END LOOP;
    l_head := coalesce(first, beyond);
    IF waits IS NULL THEN
        -- All were seen, whatever was deleted by hand.
        l_size := holders;
    END IF;
END $$;

-- Adds the notifications of the observers of this name.
CREATE OR REPLACE FUNCTION leasehold.notify_observers_1(p_name text, INOUT channels text[], INOUT payloads text[]) LANGUAGE plpgsql AS $$
DECLARE
    c pg_catalog.text;
BEGIN
    FOR c IN SELECT o.client FROM leasehold.observer o WHERE o.name = p_name AND o.until > clock_timestamp() LOOP
        channels := channels || c;
        payloads := payloads || ('changed ' || p_name);
    END LOOP;
END $$;
