-- Renews the places of these claims, granted with these tokens (0: waiting when last seen), or raised since. It waits for no row, so nothing waits for it in a
-- circle. Answers for each: 1 renewed, as it is now; 0 gone; 2 somebody is at that row, ask once more.
CREATE OR REPLACE FUNCTION leasehold.renew_1(p_claims uuid[], p_tokens bigint[], p_ttls bigint[], p_sent bigint, p_patience integer)
RETURNS TABLE (nr bigint, state integer, a_seq bigint, a_token bigint, a_turns integer, a_sent bigint, a_ttl bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    ms CONSTANT interval := '1 millisecond';
    now timestamptz;
    locked uuid[];
BEGIN
    IF (leasehold.enters_1(p_patience) AND 1 <= ALL (p_ttls) AND 31622400000000 >= ALL (p_ttls)) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('renew_1'::text);
    END IF;
    now := clock_timestamp();
    SELECT array_agg(r.claim) INTO locked FROM (
        SELECT t.claim FROM unnest(p_claims, p_tokens) a(claim, token) JOIN leasehold.place t ON t.claim = a.claim
        WHERE t.until > now AND NOT t.parted AND (a.token = 0 OR t.token >= a.token)
        FOR NO KEY UPDATE OF t SKIP LOCKED
    ) r;
    -- An end that is farther away than a lease from now on is a clock's that was ahead.
    now := clock_timestamp();
    UPDATE leasehold.place t SET
        until = greatest(least(t.until, now + t.ttl * ms), now + a.ttl * ms),
        ttl = CASE WHEN now + a.ttl * ms >= least(t.until, now + t.ttl * ms) THEN a.ttl ELSE t.ttl END,
        sent = CASE WHEN now + a.ttl * ms >= least(t.until, now + t.ttl * ms) THEN p_sent ELSE t.sent END
    FROM unnest(p_claims, p_ttls) a(claim, ttl) WHERE t.claim = a.claim AND t.claim = ANY (locked);
    RETURN QUERY SELECT a.nr,
        CASE
            WHEN t.claim = ANY (locked) THEN 1
            WHEN t.until > now AND NOT t.parted AND (a.token = 0 OR t.token >= a.token) THEN 2
            ELSE 0
        END, t.seq, t.token, t.turns, t.sent, t.ttl
        FROM unnest(p_claims, p_tokens) WITH ORDINALITY a(claim, token, nr) LEFT JOIN leasehold.place t ON t.claim = a.claim ORDER BY a.nr;
END $$;

-- Withdraws a claim. Answers `done`; `none` if there was none; `pinned` if a user's transaction keeps it until its end.
CREATE OR REPLACE FUNCTION leasehold.release_1(
    p_name text, p_claim uuid, p_patience integer, OUT what text, OUT channels text[], OUT payloads text[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    l leasehold.lines;
    p leasehold.place;
    s record;
    now timestamptz;
    changed boolean;
    -- A user's own transaction that has written is stored as it says.
    alone CONSTANT boolean := txid_current_if_assigned() IS NULL;
BEGIN
    IF leasehold.enters_1(p_patience) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('release_1'::text);
    END IF;
    -- The short way: it is the only one, and nobody is at it.
    UPDATE leasehold.lines t SET size = 0, used = clock_timestamp() WHERE t.name = p_name AND t.size = 1;
    IF FOUND THEN
        DELETE FROM leasehold.place t WHERE t.ctid = (
            SELECT t.ctid FROM leasehold.place t WHERE t.claim = p_claim AND t.name || ''::text = p_name FOR UPDATE SKIP LOCKED
        ) RETURNING 'done', '{}'::text[], '{}'::text[], t.token IS NOT NULL AND EXISTS (SELECT FROM leasehold.observer o WHERE o.name = p_name)
            INTO what, channels, payloads, changed;
        IF FOUND THEN
            IF changed THEN
                SELECT r.channels, r.payloads INTO channels, payloads FROM leasehold.notify_observers_1(p_name, channels, payloads) r;
            ELSIF alone THEN
                -- Nobody waits for its being stored. A server that crashes before it is brings the hold back, until its lease ends; but not
                -- once a later grant is stored, which comes behind it.
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN;
        END IF;
        UPDATE leasehold.lines t SET size = 1 WHERE t.name = p_name;
    END IF;
    channels := '{}'; payloads := '{}'; what := 'none'; changed := false;
    l := leasehold.lock_1(p_name, false);
    SELECT * INTO p FROM leasehold.place t WHERE t.claim = p_claim AND t.name || ''::text = p_name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    now := clock_timestamp();
    IF leasehold.remove_1(p_name, p.seq) THEN
        what := 'done';
        l.size := l.size - 1;
        changed := p.token IS NOT NULL;
    ELSE
        what := 'pinned';
    END IF;
    s := leasehold.settle_1(p_name, NULL::uuid, now, l.head, l.size, l.token);
    UPDATE leasehold.lines t SET head = s.l_head, size = s.l_size, token = s.l_token, used = now WHERE t.name = p_name;
    channels := s.channels; payloads := s.payloads;
    IF changed OR s.changed THEN
        SELECT r.channels, r.payloads INTO channels, payloads FROM leasehold.notify_observers_1(p_name, channels, payloads) r;
    END IF;
END $$;

-- Lets a hold end by itself, so many milliseconds from now. Nothing extends it. A waiter is withdrawn.
CREATE OR REPLACE FUNCTION leasehold.release_after_1(
    p_name text, p_claim uuid, p_rest bigint, p_patience integer, OUT what text, OUT channels text[], OUT payloads text[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    p leasehold.place;
    ms CONSTANT interval := '1 millisecond';
    now timestamptz;
BEGIN
    IF (leasehold.enters_1(p_patience) AND p_rest BETWEEN 0 AND 31622400000000) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('release_after_1'::text);
    END IF;
    channels := '{}'; payloads := '{}'; what := 'none';
    PERFORM leasehold.lock_1(p_name, false);
    SELECT * INTO p FROM leasehold.place t WHERE t.claim = p_claim AND t.name || ''::text = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    ELSIF p.token IS NULL THEN
        SELECT r.what, r.channels, r.payloads INTO what, channels, payloads FROM leasehold.release_1(p_name, p_claim, p_patience) r;
        RETURN;
    END IF;
    now := clock_timestamp();
    UPDATE leasehold.place t SET until = CASE WHEN t.parted THEN least(t.until, now + p_rest * ms) ELSE now + p_rest * ms END,
        ttl = p_rest, parted = true
        WHERE t.name = p_name AND t.seq = p.seq AND t.until > now;
    what := 'done';
    -- The next waits for another end than it knew.
    SELECT t.claim, t.client INTO p.claim, p.client FROM leasehold.place t
        WHERE t.name = p_name AND t.seq > p.seq AND t.token IS NULL AND t.until > now ORDER BY t.seq LIMIT 1;
    IF FOUND AND p.client <> '' THEN
        channels := ARRAY[p.client]; payloads := ARRAY['again ' || leasehold.hex_1(p.claim)];
    END IF;
END $$;

-- Ends the hold with this token, of whichever of its turns. Answers whether there was one. One that a user's transaction pins is over, and
-- in the way until that transaction ends: if it was over before, the answer is `pinned` with that transaction.
CREATE OR REPLACE FUNCTION leasehold.evict_1(
    p_name text, p_token bigint, p_patience integer, OUT what text, OUT channels text[], OUT payloads text[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    l leasehold.lines;
    p leasehold.place;
    s record;
    now timestamptz;
BEGIN
    IF leasehold.enters_1(p_patience) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('evict_1'::text);
    END IF;
    channels := '{}'; payloads := '{}'; what := 'none';
    l := leasehold.lock_1(p_name, false);
    SELECT * INTO p FROM leasehold.place t WHERE t.name = p_name AND t.seq >= l.head AND t.token <= p_token AND p_token < t.token + t.turns
        LIMIT 1 FOR NO KEY UPDATE;
    now := clock_timestamp();
    IF p.until <= now IS NOT FALSE THEN
        SELECT 'pinned' || leasehold.keeper_1(t.xmax) INTO what FROM leasehold.place t WHERE t.name = p_name AND t.seq = p.seq;
        what := coalesce(what, 'none');
        RETURN;
    END IF;
    what := 'done';
    IF leasehold.remove_1(p_name, p.seq) THEN
        l.size := l.size - 1;
    END IF;
    s := leasehold.settle_1(p_name, NULL::uuid, now, l.head, l.size, l.token);
    UPDATE leasehold.lines t SET head = s.l_head, size = s.l_size, token = s.l_token, used = now WHERE t.name = p_name;
    channels := s.channels; payloads := s.payloads;
    IF p.client <> '' THEN
        channels := p.client || channels; payloads := ('evicted ' || leasehold.hex_1(p.claim)) || payloads;
    END IF;
    SELECT r.channels, r.payloads INTO channels, payloads FROM leasehold.notify_observers_1(p_name, channels, payloads) r;
END $$;

-- The live places of a name in their order, and holds whose lease has ended and that a transaction keeps.
CREATE OR REPLACE FUNCTION leasehold.inspect_1(p_name text)
RETURNS TABLE (mode smallint, n bigint, of bigint, token bigint, label bytea, since bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
    SELECT t.mode, t.n, t.of, t.token, t.label || convert_to(coalesce(k.kept, ''), 'UTF8'), (extract(epoch FROM t.since) * 1000)::bigint
    FROM leasehold.place t CROSS JOIN LATERAL (
        SELECT CASE WHEN t.token IS NOT NULL AND t.until <= clock_timestamp() THEN leasehold.keeper_1(t.xmax) END AS kept
    ) k
    WHERE t.name = p_name AND (t.until > clock_timestamp() OR k.kept IS NOT NULL)
        AND t.seq >= coalesce((SELECT l.head FROM leasehold.lines l WHERE l.name = p_name), 0)
    ORDER BY t.seq
$$;

-- The names with this beginning that are held or waited for, in the order of their bytes, after `p_after`.
CREATE OR REPLACE FUNCTION leasehold.list_1(p_prefix text, p_after text, p_limit bigint) RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    found_one text;
    beyond text := p_after;
    now CONSTANT timestamptz := clock_timestamp();
BEGIN
    FOR i IN 1 .. p_limit LOOP
        SELECT t.name INTO found_one FROM leasehold.place t
            WHERE t.name >= p_prefix COLLATE "C" AND (beyond IS NULL OR t.name > beyond COLLATE "C") AND t.until > now
            ORDER BY t.name, t.seq LIMIT 1;
        EXIT WHEN NOT FOUND OR NOT starts_with(found_one, p_prefix);
        RETURN NEXT found_one;
        beyond := found_one;
    END LOOP;
END $$;

-- From now on, and for so many milliseconds, this client is notified when the holder of a name changes; 0: no longer.
CREATE OR REPLACE FUNCTION leasehold.observe_1(p_name text, p_client text, p_for bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = off AS $$
BEGIN
    IF (octet_length(p_name) BETWEEN 1 AND 2600 AND octet_length(p_client) BETWEEN 1 AND 63 AND p_for BETWEEN 0 AND 3600000) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('observe_1'::text);
    END IF;
    IF p_for = 0 THEN
        DELETE FROM leasehold.observer o WHERE o.name = p_name AND o.client = p_client;
    ELSE
        INSERT INTO leasehold.observer AS o VALUES (p_name, p_client, clock_timestamp() + p_for * interval '1 millisecond')
            ON CONFLICT (name, client) DO UPDATE SET until = excluded.until;
    END IF;
END $$;

-- Removes what nobody uses: a part of it, and whether there is more. One client does it at a time, each `p_pause` milliseconds at most.
CREATE OR REPLACE FUNCTION leasehold.sweep_1(p_pause bigint, p_most integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = off AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    ms CONSTANT interval := '1 millisecond';
    old text[];
    top bigint;
    ended bigint;
    more boolean;
    n text;
    l leasehold.lines;
    s record;
BEGIN
    IF (leasehold.enters_1(1000) AND p_pause BETWEEN 1000 AND 31622400000000 AND p_most BETWEEN 1 AND 1000) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('sweep_1'::text);
    END IF;
    -- After the first sweep no sweep waits for a row: otherwise a transaction that somebody leaves open would stop all of them.
    IF NOT EXISTS (SELECT FROM leasehold.meta) THEN
        INSERT INTO leasehold.meta DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;
    PERFORM 1 FROM leasehold.meta t WHERE t.one AND (t.swept < now - p_pause * ms OR t.swept > now) FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Places of clients that have ended, in lines that nobody uses.
    FOR n IN SELECT t.name FROM leasehold.lines t WHERE t.size > 0 AND t.used < now - interval '10 minutes' AND NOT EXISTS (
            SELECT FROM leasehold.place p WHERE p.name = t.name AND p.until > now
        ) LIMIT 100 LOOP
        SELECT * INTO l FROM leasehold.lines t WHERE t.name = n FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            s := leasehold.settle_1(n, NULL::uuid, now, l.head, l.size, l.token);
            UPDATE leasehold.lines t SET head = s.l_head, size = s.l_size, token = s.l_token WHERE t.name = n;
        END IF;
    END LOOP;
    SELECT array_agg(r.name), max(r.token) INTO old, top FROM (
        SELECT t.name, t.token FROM leasehold.lines t WHERE t.size = 0 AND (t.used < now - p_pause * ms OR t.used > now + interval '1 hour')
        LIMIT p_most FOR UPDATE SKIP LOCKED
    ) r;
    -- Completions whose keep has passed.
    DELETE FROM leasehold.completion d WHERE d.name = ANY (ARRAY(
        SELECT t.name FROM leasehold.completion t WHERE t.until < now ORDER BY t.until LIMIT p_most FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS ended = ROW_COUNT;
    more := coalesce(cardinality(old) = p_most, false) OR ended = p_most;
    UPDATE leasehold.meta t SET floor = greatest(t.floor, top), swept = CASE WHEN more THEN t.swept ELSE now END;
    DELETE FROM leasehold.lines t WHERE t.name = ANY (old);
    -- A row that a transaction has locked is left for the next sweep.
    DELETE FROM leasehold.observer o WHERE o.ctid = ANY (ARRAY(
        SELECT t.ctid FROM leasehold.observer t WHERE t.until < now FOR UPDATE SKIP LOCKED
    ));
    RETURN more;
END $$;

-- A number that no token exceeds which was granted so far.
CREATE OR REPLACE FUNCTION leasehold.mark_1() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = off AS $$
    SELECT greatest((SELECT t.floor FROM leasehold.meta t WHERE t.one), (SELECT max(t.token) FROM leasehold.lines t),
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

-- From now on all tokens are greater than this number. Who is at a line, or makes one from the floor of before, is waited for, and all
-- others wait: once, for a move from another store.
CREATE OR REPLACE FUNCTION leasehold.raise_1(p_number bigint, p_patience integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = off AS $$
BEGIN
    IF (leasehold.enters_1(p_patience) AND p_number BETWEEN 0 AND 4611686018427387904) IS NOT TRUE THEN
        PERFORM leasehold.refuse_1('raise_1'::text);
    END IF;
    INSERT INTO leasehold.meta DEFAULT VALUES ON CONFLICT DO NOTHING;
    -- Before the lock, as in a sweep.
    UPDATE leasehold.meta t SET floor = greatest(t.floor, p_number);
    LOCK TABLE leasehold.lines IN EXCLUSIVE MODE;
    -- One without a token begins above the floor when a place in it is given its first one.
    UPDATE leasehold.lines t SET token = p_number WHERE t.token > 0 AND t.token < p_number;
END $$;

-- For a transaction of the user's own: this hold stands, and no other is granted before that transaction has ended. Else the error LH001,
-- which ends the transaction; LH005 if the hold has several tokens: others may have it after this one, and this database does not hear of
-- that. A transaction that does nothing for longer than its shortest lease is ended by the server, and so is one whose client takes none
-- of its rows, or has gone with its machine: a connection over TCP is given up then.
CREATE OR REPLACE FUNCTION leasehold.held(p_name text, p_token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off SET row_security = off AS $$
DECLARE
    lease bigint;
    -- In milliseconds. Their greatest value is 24 days; 0 is none.
    idle bigint := extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
    unsent bigint := current_setting('tcp_user_timeout');
    probe bigint;
BEGIN
    SELECT t.ttl INTO lease FROM leasehold.place t
        WHERE t.name = p_name AND t.seq >= coalesce((SELECT l.head FROM leasehold.lines l WHERE l.name = p_name), 0)
        AND t.token = p_token AND t.turns = 1 AND t.until > clock_timestamp() AND NOT t.parted
        FOR KEY SHARE;
    IF NOT FOUND THEN
        -- Without a lock, which would be in the way of a release just after this.
        PERFORM 1 FROM leasehold.place t WHERE t.name = p_name AND t.turns > 1 AND t.token <= p_token AND p_token < t.token + t.turns
            AND t.until > clock_timestamp() AND NOT t.parted;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the lock is no longer held' USING ERRCODE = 'LH001';
        END IF;
        RAISE EXCEPTION 'a transaction cannot depend on a hold that is passed on without this database' USING ERRCODE = 'LH005',
            HINT = 'Take the lock without `fast`, and not over a bridge between two stores.';
    END IF;
    IF idle = 0 OR lease < idle THEN
        PERFORM set_config('idle_in_transaction_session_timeout', least(lease, 2147483647)::text, true);
    END IF;
    -- One lost packet is no reason, so not less than a second. Elsewhere there is no such limit.
    IF version() LIKE '%linux%' AND (unsent = 0 OR greatest(lease, 1000) < unsent) THEN
        unsent := least(greatest(lease, 1000), 2147483647);
        PERFORM set_config('tcp_user_timeout', unsent::text, true);
        -- A client that need not answer is asked whether it is there, in seconds.
        probe := greatest(1, unsent / 3000);
        PERFORM set_config(n, probe::text, true) FROM unnest(ARRAY['tcp_keepalives_idle', 'tcp_keepalives_interval']) n
            WHERE current_setting(n)::bigint NOT BETWEEN 1 AND probe;
    END IF;
END $$;
